"""What a bind takes along, what it refuses and what it says: on made-up hosts, without any kernel."""

from __future__ import annotations

import pytest

from tests.hosts.machines import HOSTS, NAMES, function, inventory_of
from vfioctl.binding.plan.bind import plan_bind
from vfioctl.core.change import Binding, Intent, Plan, StepKind, Verb
from vfioctl.errors import BadSpec, DeviceInUse, GroupNotViable, NoIommu, VfioctlError
from vfioctl.host import Host
from vfioctl.inventory.model.functions import Function, Inventory, Iommu
from vfioctl.inventory.model.scope import scope_of
from vfioctl.inventory.model.values import PciAddress

VFIO = Binding(driver="vfio-pci", driver_override="vfio-pci")
GPU = function("41:00.0", iommu_group=12, reset_methods=("flr",))
AUDIO = function("41:00.1", "040300", driver="snd_hda_intel", iommu_group=12, available_drivers=("snd_hda_intel",))
BRIDGE = function("40:01.0", "060400", driver="pcieport", iommu_group=12)
DISK = function("42:00.0", "010802", driver="nvme", iommu_group=12, device_name="PM9A3")


def planned(host: Inventory, *devices: str, **wishes: object) -> Plan:
    known: dict[str, object] = {"verb": Verb.BIND, "devices": devices or ("0000:41:00.0",)}
    return plan_bind(host, Intent.model_validate(known | wishes))


def after(plan: Plan) -> dict[str, Binding]:
    return {str(change.address): change.after for change in plan.changes}


def writes(plan: Plan) -> list[tuple[str, str]]:
    done = (step for step in plan.steps if step.kind != StepKind.CHECK)
    return [(step.target.rpartition("/sys/bus/pci/")[2], step.value) for step in done]


def refused(kind: type[VfioctlError], host: Inventory, *devices: str, **wishes: object) -> VfioctlError:
    with pytest.raises(kind) as caught:
        planned(host, *devices, **wishes)
    assert caught.value.hint
    return caught.value


class TestWhatGoesAlong:
    def test_the_whole_card_goes_in_one_order(self) -> None:
        plan = planned(inventory_of(GPU, AUDIO))
        assert after(plan) == {"0000:41:00.0": VFIO, "0000:41:00.1": VFIO}
        assert [(change.before.driver, change.before.driver_override) for change in plan.changes] == [
            ("nvidia", None),
            ("snd_hda_intel", None),
        ]
        assert writes(plan) == [
            ("vfio-pci", ""),
            ("devices/0000:41:00.0/driver_override", "vfio-pci"),
            ("devices/0000:41:00.1/driver_override", "vfio-pci"),
            ("drivers/nvidia/unbind", "0000:41:00.0"),
            ("drivers/snd_hda_intel/unbind", "0000:41:00.1"),
            ("drivers_probe", "0000:41:00.0"),
            ("drivers_probe", "0000:41:00.1"),
        ]
        assert plan.viable_groups == (12,)

    def test_any_function_of_a_card_brings_the_others(self) -> None:
        assert after(planned(inventory_of(GPU, AUDIO), "0000:41:00.1")).keys() == {"0000:41:00.0", "0000:41:00.1"}

    def test_a_card_in_two_groups_brings_both(self) -> None:
        audio = AUDIO.model_copy(update={"iommu_group": 13})
        plan = planned(inventory_of(GPU, audio))
        assert after(plan).keys() == {"0000:41:00.0", "0000:41:00.1"}
        assert plan.viable_groups == (12, 13)

    def test_a_stranger_in_the_companions_group_counts_too(self) -> None:
        audio, disk = (each.model_copy(update={"iommu_group": 13}) for each in (AUDIO, DISK))
        assert "0000:42:00.0" in refused(GroupNotViable, inventory_of(GPU, audio, disk)).message

    def test_functions_tied_by_device_links_are_one_card(self) -> None:
        usb = function("43:00.0", "0c0330", driver="xhci_hcd", iommu_group=14, suppliers=("0000:41:00.0",))
        ucsi = function("44:00.0", "0c8000", driver=None, iommu_group=15, consumers=("0000:43:00.0",))
        plan = planned(inventory_of(GPU, AUDIO, usb, ucsi))
        assert after(plan).keys() == {"0000:41:00.0", "0000:41:00.1", "0000:43:00.0", "0000:44:00.0"}
        assert plan.viable_groups == (12, 14, 15)

    def test_links_to_what_is_not_there_bring_nothing(self) -> None:
        gpu = function("41:00.0", suppliers=("ffff:00:00.0",), consumers=("0000:41:00.0",))
        assert after(planned(inventory_of(gpu))).keys() == {"0000:41:00.0"}

    def test_several_devices_are_one_plan(self) -> None:
        other = function("c1:00.0", iommu_group=20)
        plan = planned(inventory_of(GPU, AUDIO, other), "0000:c1:00.0", "0000:41:00.0")
        assert after(plan).keys() == {"0000:41:00.0", "0000:41:00.1", "0000:c1:00.0"}
        assert plan.viable_groups == (12, 20)
        assert [kind for kind, _ in writes(plan)].count("vfio-pci") == 1

    def test_bridges_are_left_alone_and_said_to_be(self) -> None:
        plan = planned(inventory_of(BRIDGE, GPU, AUDIO))
        assert "0000:40:01.0" not in after(plan)
        assert plan.notes == ("0000:40:01.0 (10de:2330, pcieport) is a bridge and stays with the host",)
        assert "0000:40:01.0" in [fact.address for fact in plan.facts]

    def test_a_stranger_in_the_group_is_named(self) -> None:
        error = refused(GroupNotViable, inventory_of(GPU, AUDIO, DISK))
        assert error.message == "IOMMU group 12 also holds 0000:42:00.0 (PM9A3, nvme)"
        assert error.facts == {"strangers": ["0000:42:00.0"]}
        assert "--with-group" in error.hint

    def test_a_bridge_whose_driver_does_its_own_dma_cannot_be_helped(self) -> None:
        bridge = BRIDGE.model_copy(update={"driver": "shpchp"})
        for wishes in ({}, {"with_group": True}):
            error = refused(GroupNotViable, inventory_of(bridge, GPU, AUDIO), **wishes)
            assert error.message == "IOMMU group 12 also holds 0000:40:01.0 (10de:2330, shpchp)"
            assert error.facts == {"strangers": ["0000:40:01.0"]}
            assert "--with-group" not in error.hint

    @pytest.mark.parametrize("driver", [None, "vfio-pci", "pci-stub", "pcieport", "mlx5_vfio_pci"])
    def test_a_stranger_that_does_no_harm_is_left_alone(self, driver: str | None) -> None:
        host = inventory_of(GPU, AUDIO, DISK.model_copy(update={"driver": driver}))
        for wishes in ({}, {"with_group": True}):
            plan = planned(host, **wishes)
            assert "0000:42:00.0" not in after(plan)
            assert "shares the group and is left as it is" in plan.notes[0]

    def test_a_stranger_goes_along_when_asked(self) -> None:
        plan = planned(inventory_of(GPU, AUDIO, DISK), with_group=True)
        assert after(plan)["0000:42:00.0"] == VFIO
        assert plan.notes == ("0000:42:00.0 (PM9A3, nvme) shares the group and goes with it (--with-group)",)

    @pytest.mark.parametrize(
        ("kind", "facts"),
        [
            (DeviceInUse, {"boot_vga": True, "class_code": "030000"}),
            (DeviceInUse, {"virtfns": (GPU.address,)}),
            (DeviceInUse, {"unknown": {"driver_override": "EIO"}}),
        ],
    )
    def test_a_stranger_that_goes_along_is_looked_at_as_well(
        self, kind: type[VfioctlError], facts: dict[str, object]
    ) -> None:
        host = inventory_of(GPU, AUDIO, DISK.model_copy(update=facts))
        assert "0000:42:00.0" in refused(kind, host, with_group=True).message

    def test_the_plan_rests_on_every_function_concerned(self) -> None:
        plan = planned(inventory_of(BRIDGE, GPU, AUDIO, DISK, function("c1:00.0", iommu_group=20)), with_group=True)
        assert [fact.address for fact in plan.facts] == ["0000:40:01.0", "0000:41:00.0", "0000:41:00.1", "0000:42:00.0"]
        gpu = plan.facts[1]
        assert (gpu.identity, gpu.iommu_group) == ("10de:2330:10de:16c1:030200", 12)
        assert gpu.binding == Binding(driver="nvidia", driver_override=None)

    def test_a_vf_is_bound_alone(self) -> None:
        pf = function("41:00.0", iommu_group=12, virtfns=("41:00.1", "41:00.2"), driver="gim")
        vfs = [function(f"41:00.{n}", iommu_group=20 + n, driver=None, physfn="41:00.0") for n in (1, 2)]
        plan = planned(inventory_of(pf, *vfs), "0000:41:00.1")
        assert after(plan).keys() == {"0000:41:00.1"}
        assert plan.viable_groups == (21,)
        assert scope_of(inventory_of(pf, *vfs), (PciAddress("41:00.0"),)).own == ("0000:41:00.0",)


class TestTheDriver:
    VARIANT = ("nvidia", "nvgrace_gpu_vfio_pci", "vfio-pci")

    def test_is_the_best_variant_of_each_function(self) -> None:
        gpu = function("41:00.0", available_drivers=self.VARIANT)
        audio = function("41:00.1", "040300", driver=None, available_drivers=("snd_hda_intel",))
        plan = planned(inventory_of(gpu, audio))
        assert [b.driver for b in after(plan).values()] == ["nvgrace_gpu_vfio_pci", "vfio-pci"]
        assert writes(plan)[:2] == [("nvgrace_gpu_vfio_pci", ""), ("vfio-pci", "")]

    def test_that_is_asked_for_is_for_the_devices_asked_for(self) -> None:
        gpu = function("41:00.0", available_drivers=self.VARIANT)
        plan = planned(inventory_of(gpu, function("41:00.1", "040300")), driver="vfio-pci")
        assert [b.driver for b in after(plan).values()] == ["vfio-pci", "vfio-pci"]
        plan = planned(inventory_of(GPU, AUDIO), driver="mlx5_vfio_pci")
        assert [b.driver for b in after(plan).values()] == ["mlx5_vfio_pci", "vfio-pci"]

    @pytest.mark.parametrize("drivers", [("vfio-pci",), ("vfio_pci", "nvidia")])
    def test_is_not_loaded_when_it_is_there(self, drivers: tuple[str, ...]) -> None:
        plan = plan_bind(
            inventory_of(GPU, AUDIO, drivers=drivers), Intent(verb=Verb.BIND, devices=(GPU.address,), driver=None)
        )
        assert StepKind.LOAD not in [step.kind for step in plan.steps]

    def test_that_it_has_already_is_nothing_to_do(self) -> None:
        for override in ("vfio-pci", None):
            there = {"driver": "vfio-pci", "driver_override": override}
            plan = planned(inventory_of(*(each.model_copy(update=there) for each in (GPU, AUDIO))))
            assert plan.nothing_to_do
            assert (plan.changes, plan.viable_groups) == ((), ())
            assert len(plan.facts) == 2

    def test_is_changed_from_one_vfio_driver_to_another_when_asked(self) -> None:
        gpu = GPU.model_copy(update={"driver": "vfio-pci", "driver_override": "vfio-pci"})
        plan = planned(inventory_of(gpu), driver="nvgrace_gpu_vfio_pci")
        assert ("drivers/vfio-pci/unbind", "0000:41:00.0") in writes(plan)
        assert planned(inventory_of(gpu), driver="vfio_pci").nothing_to_do

    def test_is_taken_by_a_device_that_has_none(self) -> None:
        plan = planned(inventory_of(GPU.model_copy(update={"driver": None})))
        assert writes(plan)[1:] == [
            ("devices/0000:41:00.0/driver_override", "vfio-pci"),
            ("drivers_probe", "0000:41:00.0"),
        ]

    def test_that_is_not_for_vfio_is_refused(self) -> None:
        error = refused(BadSpec, inventory_of(GPU), driver="nvidia")
        assert error.message == "nvidia is not a VFIO driver"
        assert "unbind --to nvidia" in error.hint

    @pytest.mark.parametrize("name", ["", "../x", "a/b", "vfio pci", "-vfio-pci", "x" * 65, "x\n", "\u0663", "a.b"])
    def test_that_is_no_name_is_refused(self, name: str) -> None:
        with pytest.raises(BadSpec, match="not a driver's name") as caught:
            planned(inventory_of(GPU), driver=name)
        assert len(caught.value.message) < 100


class TestRefusals:
    def test_without_groups_says_why(self) -> None:
        host = inventory_of(GPU, iommu=Iommu(kind=None, translating=False, reason="switched off in the firmware"))
        error = refused(NoIommu, host)
        assert (error.message, error.hint) == ("this host has no IOMMU groups", "switched off in the firmware")

    def test_a_device_in_no_group_is_named(self) -> None:
        groupless = [each.model_copy(update={"iommu_group": None}) for each in (GPU, AUDIO)]
        assert "0000:41:00.0 (10de:2330, nvidia) is in no" in refused(NoIommu, inventory_of(groupless[0])).message
        assert "0000:41:00.1 (10de:2330, snd_hda_intel) is" in refused(NoIommu, inventory_of(GPU, groupless[1])).message

    def test_the_boot_display_is_kept_unless_allowed(self) -> None:
        gpu = GPU.model_copy(update={"boot_vga": True})
        error = refused(DeviceInUse, inventory_of(gpu, AUDIO), "0000:41:00.1")
        assert error.message.startswith("0000:41:00.0 (10de:2330, nvidia) is the boot display")
        assert "--allow-boot-vga" in error.hint
        assert after(planned(inventory_of(gpu, AUDIO), allow_boot_vga=True)).keys() == {"0000:41:00.0", "0000:41:00.1"}
        there = gpu.model_copy(update={"driver": "vfio-pci", "driver_override": "vfio-pci"})
        assert planned(inventory_of(there)).nothing_to_do

    def test_a_physical_function_with_live_vfs_is_in_use(self) -> None:
        vfs = tuple(PciAddress(f"41:02.{n}") for n in range(6))
        error = refused(DeviceInUse, inventory_of(GPU.model_copy(update={"virtfns": vfs})))
        assert "has 6 live VFs: 0000:41:02.0, 0000:41:02.1, 0000:41:02.2, 0000:41:02.3" in error.message
        assert "vfioctl sriov off 0000:41:00.0" in error.hint

    @pytest.mark.parametrize("class_code", ["060400", "060000", "060401"])
    def test_a_bridge_is_no_endpoint(self, class_code: str) -> None:
        bridge = BRIDGE.model_copy(update={"class_code": class_code, "class_name": "PCI bridge"})
        error = refused(BadSpec, inventory_of(bridge, GPU), "0000:40:01.0")
        assert error.message == "0000:40:01.0 (10de:2330, pcieport) is a PCI bridge, not an endpoint"

    @pytest.mark.parametrize("who", [GPU, AUDIO])
    def test_a_function_that_cannot_be_read_is_in_use(self, who: Function) -> None:
        mute = who.model_copy(update={"unknown": {"driver_override": "no answer after 1 s"}})
        host = inventory_of(*(mute if each is who else each for each in (GPU, AUDIO)))
        error = refused(DeviceInUse, host)
        assert str(who.address) in error.message
        assert "no answer after 1 s" in error.message

    def test_a_function_of_which_something_else_is_unknown_can_be_bound(self) -> None:
        assert after(planned(inventory_of(GPU.model_copy(update={"unknown": {"numa_node": "EIO"}}))))

    @pytest.mark.parametrize("name", ["iommu-off", "iommu-firmware"])
    def test_on_a_host_with_the_iommu_off_the_hint_says_where(self, name: str) -> None:
        with pytest.raises(NoIommu) as caught:
            Host.recorded(str(HOSTS / f"{name}.host")).plan_bind(["gpu0"], allow_boot_vga=True)
        assert {"iommu-off": "intel_iommu=off", "iommu-firmware": "BIOS"}[name] in caught.value.hint


def answer(host: Host, gpu: PciAddress) -> Plan | VfioctlError:
    try:
        return host.plan_bind([gpu])
    except VfioctlError as error:
        return error


class TestBundledHosts:
    @pytest.mark.parametrize("name", NAMES)
    def test_each_gpu_is_planned_for_or_refused_with_a_hint(self, name: str) -> None:
        host = Host.recorded(str(HOSTS / f"{name}.host"))
        for gpu in host.inventory().numbered_gpus.values():
            found = answer(host, gpu)
            if isinstance(found, VfioctlError):
                assert found.hint
                assert found.exit_code in (3, 4)
            else:
                assert gpu in after(found) or found.nothing_to_do
                assert Plan.model_validate_json(found.model_dump_json()) == found
                assert answer(host, gpu) == found

    def test_the_workstations_card_in_two_groups(self) -> None:
        plan = Host.recorded(str(HOSTS / "workstation.host")).plan_bind(["05:00.0"])
        assert plan.viable_groups == (7, 8)

    def test_the_superchips_own_vfio_driver(self) -> None:
        plan = Host.recorded(str(HOSTS / "gh200.host")).plan_bind(["gpu0"])
        assert after(plan)["0009:01:00.0"].driver == "nvgrace_gpu_vfio_pci"
        assert plan.steps[0].target == "nvgrace_gpu_vfio_pci"
