"""What a bind takes along, what it refuses and what it says: on made-up hosts, without any kernel."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.machines import (
    HOSTS,
    NAMES,
    REGISTRY,
    copy,
    differing,
    effects_of,
    function,
    inventory_of,
    machine,
    original,
    state,
)
from vfioctl.binding.model.binding import Binding, binding_in, binding_of
from vfioctl.binding.model.intents import BindIntent
from vfioctl.binding.plan.bind import plan_bind
from vfioctl.core.change import CheckRequest, JournalState, Plan, Result
from vfioctl.errors import BadSpec, DeviceInUse, GroupNotViable, KernelRefused, NoIommu, VfioctlError
from vfioctl.host import Host
from vfioctl.inventory.model.functions import Function, Inventory
from vfioctl.inventory.model.machine import Iommu
from vfioctl.inventory.model.scope import scope_of
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.simulated import rules
from vfioctl.kernel.simulated.faults import Fault
from vfioctl.kernel.simulated.host import Simulated

VFIO = Binding(driver="vfio-pci", driver_override="vfio-pci")
GPU = function("41:00.0", iommu_group=12, reset_methods=("flr",))
AUDIO = function("41:00.1", "040300", driver="snd_hda_intel", iommu_group=12, available_drivers=("snd_hda_intel",))
BRIDGE = function("40:01.0", "060400", driver="pcieport", iommu_group=12)
DISK = function("42:00.0", "010802", driver="nvme", iommu_group=12, device_name="PM9A3")


def planned(host: Inventory, *devices: str, **wishes: object) -> Plan:
    known: dict[str, object] = {"devices": devices or ("0000:41:00.0",)}
    return REGISTRY.plan(plan_bind(host, BindIntent.model_validate(known | wishes)))


def after(plan: Plan) -> dict[str, Binding]:
    return {change.subject: Binding.parse(change.after) for change in plan.changes_of("binding")}


def viable(*groups: int) -> tuple[CheckRequest, ...]:
    """What is verified when the kernel is asked to call those groups viable."""
    return (CheckRequest(kind="viable", subjects=tuple(map(str, groups))),)


def writes(plan: Plan) -> list[tuple[str, str]]:
    done = (step for step in plan.steps if step.action != "unheld")
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
        assert [Binding.parse(change.before)[:2] for change in plan.changes_of("binding")] == [
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
        assert plan.checks == viable(12)

    def test_any_function_of_a_card_brings_the_others(self) -> None:
        assert after(planned(inventory_of(GPU, AUDIO), "0000:41:00.1")).keys() == {"0000:41:00.0", "0000:41:00.1"}

    def test_a_card_in_two_groups_brings_both(self) -> None:
        audio = replace(AUDIO, iommu_group=13)
        plan = planned(inventory_of(GPU, audio))
        assert after(plan).keys() == {"0000:41:00.0", "0000:41:00.1"}
        assert plan.checks == viable(12, 13)

    def test_a_stranger_in_the_companions_group_counts_too(self) -> None:
        audio, disk = (replace(each, iommu_group=13) for each in (AUDIO, DISK))
        assert "0000:42:00.0" in refused(GroupNotViable, inventory_of(GPU, audio, disk)).message

    def test_functions_tied_by_device_links_are_one_card(self) -> None:
        usb = function("43:00.0", "0c0330", driver="xhci_hcd", iommu_group=14, suppliers=("0000:41:00.0",))
        ucsi = function("44:00.0", "0c8000", driver=None, iommu_group=15, consumers=("0000:43:00.0",))
        plan = planned(inventory_of(GPU, AUDIO, usb, ucsi))
        assert after(plan).keys() == {"0000:41:00.0", "0000:41:00.1", "0000:43:00.0", "0000:44:00.0"}
        assert plan.checks == viable(12, 14, 15)

    def test_links_to_what_is_not_there_bring_nothing(self) -> None:
        gpu = function("41:00.0", suppliers=("ffff:00:00.0",), consumers=("0000:41:00.0",))
        assert after(planned(inventory_of(gpu))).keys() == {"0000:41:00.0"}

    def test_several_devices_are_one_plan(self) -> None:
        other = function("c1:00.0", iommu_group=20)
        plan = planned(inventory_of(GPU, AUDIO, other), "0000:c1:00.0", "0000:41:00.0")
        assert after(plan).keys() == {"0000:41:00.0", "0000:41:00.1", "0000:c1:00.0"}
        assert plan.checks == viable(12, 20)
        assert [kind for kind, _ in writes(plan)].count("vfio-pci") == 1

    def test_bridges_are_left_alone_and_said_to_be(self) -> None:
        plan = planned(inventory_of(BRIDGE, GPU, AUDIO))
        assert "0000:40:01.0" not in after(plan)
        assert plan.notes == ("0000:40:01.0 (10de:2330, pcieport) is a bridge and stays with the host",)
        assert "0000:40:01.0" in [fact.subject for fact in plan.facts]

    def test_a_stranger_in_the_group_is_named(self) -> None:
        error = refused(GroupNotViable, inventory_of(GPU, AUDIO, DISK))
        assert error.message == "IOMMU group 12 also holds 0000:42:00.0 (PM9A3, nvme)"
        assert error.facts == {"strangers": ["0000:42:00.0"]}
        assert "--with-group" in error.hint

    def test_a_bridge_whose_driver_does_its_own_dma_cannot_be_helped(self) -> None:
        bridge = replace(BRIDGE, driver="shpchp")
        for wishes in ({}, {"with_group": True}):
            error = refused(GroupNotViable, inventory_of(bridge, GPU, AUDIO), **wishes)
            assert error.message == "IOMMU group 12 also holds 0000:40:01.0 (10de:2330, shpchp)"
            assert error.facts == {"strangers": ["0000:40:01.0"]}
            assert "--with-group" not in error.hint

    @pytest.mark.parametrize("driver", [None, "vfio-pci", "pci-stub", "pcieport", "mlx5_vfio_pci"])
    def test_a_stranger_that_does_no_harm_is_left_alone(self, driver: str | None) -> None:
        host = inventory_of(GPU, AUDIO, replace(DISK, driver=driver))
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
        self, kind: type[VfioctlError], facts: dict[str, Any]
    ) -> None:
        host = inventory_of(GPU, AUDIO, replace(DISK, **facts))
        assert "0000:42:00.0" in refused(kind, host, with_group=True).message

    def test_the_plan_rests_on_every_function_concerned(self) -> None:
        plan = planned(inventory_of(BRIDGE, GPU, AUDIO, DISK, function("c1:00.0", iommu_group=20)), with_group=True)
        assert [fact.subject for fact in plan.facts] == ["0000:40:01.0", "0000:41:00.0", "0000:41:00.1", "0000:42:00.0"]
        gpu = plan.facts[1]
        assert (gpu.values["identity"], gpu.values["iommu_group"]) == ("10de:2330:10de:16c1:030200", 12)
        assert binding_in(gpu) == Binding(driver="nvidia", driver_override=None)

    def test_a_vf_is_bound_alone(self) -> None:
        pf = function("41:00.0", iommu_group=12, virtfns=("41:00.1", "41:00.2"), driver="gim")
        vfs = [function(f"41:00.{n}", iommu_group=20 + n, driver=None, physfn="41:00.0") for n in (1, 2)]
        plan = planned(inventory_of(pf, *vfs), "0000:41:00.1")
        assert after(plan).keys() == {"0000:41:00.1"}
        assert plan.checks == viable(21)
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
        plan = planned(inventory_of(GPU, AUDIO, drivers=drivers))
        assert "load" not in [step.action for step in plan.steps]
        assert not plan.changes_of("module")

    def test_that_it_has_already_is_nothing_to_do(self) -> None:
        for override in ("vfio-pci", None):
            there = (replace(each, driver="vfio-pci", driver_override=override) for each in (GPU, AUDIO))
            plan = planned(inventory_of(*there))
            assert plan.nothing_to_do
            assert (plan.changes, plan.checks) == ((), ())
            assert len(plan.facts) == 2

    def test_is_changed_from_one_vfio_driver_to_another_when_asked(self) -> None:
        gpu = replace(GPU, driver="vfio-pci", driver_override="vfio-pci")
        plan = planned(inventory_of(gpu), driver="nvgrace_gpu_vfio_pci")
        assert ("drivers/vfio-pci/unbind", "0000:41:00.0") in writes(plan)
        assert planned(inventory_of(gpu), driver="vfio_pci").nothing_to_do

    def test_is_taken_by_a_device_that_has_none(self) -> None:
        plan = planned(inventory_of(replace(GPU, driver=None)))
        assert writes(plan)[1:] == [
            ("devices/0000:41:00.0/driver_override", "vfio-pci"),
            ("drivers_probe", "0000:41:00.0"),
        ]

    def test_that_is_not_for_vfio_is_refused(self) -> None:
        error = refused(BadSpec, inventory_of(GPU), driver="nvidia")
        assert error.message == "nvidia is not a VFIO driver"
        assert error.next_command == "vfioctl unbind 0000:41:00.0 --to nvidia"

    @pytest.mark.parametrize("name", ["", "../x", "a/b", "vfio pci", "-vfio-pci", "x" * 65, "x\n", "\u0663", "a.b"])
    def test_that_is_no_name_is_refused(self, name: str) -> None:
        with pytest.raises(BadSpec, match="not a driver's name") as caught:
            planned(inventory_of(GPU), driver=name)
        assert len(caught.value.message) < 100


class TestWhatIsWrittenIsWhatThePlanShows:
    """The kernel compares an override with a driver's registered name, to the letter; a module's has `_` for `-`."""

    VARIANT, REGISTERED = "nvgrace_gpu_vfio_pci", "nvgrace-gpu-vfio-pci"
    GH200 = "0009:01:00.0"

    def overrides(self, plan: Plan) -> list[tuple[str, tuple[str, ...]]]:
        return [(step.value, step.alternatives) for step in plan.steps if step.action == "override"]

    @pytest.mark.parametrize(("registered", "asked"), [(REGISTERED, VARIANT), (VARIANT, REGISTERED)])
    def test_a_driver_is_spelled_as_it_is_registered(self, registered: str, asked: str) -> None:
        host = inventory_of(GPU, drivers=("nvidia", registered))
        plan = planned(host, driver=asked)
        assert after(plan) == {"0000:41:00.0": Binding(registered, registered)}
        assert self.overrides(plan) == [(registered, ())]
        assert not plan.changes_of("module")
        assert any(step.why == f"{registered} takes it" for step in plan.steps)

    def test_its_module_by_the_ids_too(self) -> None:
        gpu = replace(GPU, available_drivers=("nvidia", self.VARIANT, "vfio-pci"))
        plan = planned(inventory_of(gpu, drivers=(self.REGISTERED,)))
        assert self.overrides(plan) == [(self.REGISTERED, ())]

    @pytest.mark.parametrize("asked", [VARIANT, REGISTERED])
    def test_all_spellings_are_listed_of_one_that_is_not_registered(self, asked: str) -> None:
        other = {self.VARIANT: self.REGISTERED, self.REGISTERED: self.VARIANT}[asked]
        plan = planned(inventory_of(GPU), driver=asked)
        assert self.overrides(plan) == [(asked, (other,))]
        assert after(plan) == {"0000:41:00.0": Binding(asked, asked, (other,))}
        assert Binding.parse(after(plan)["0000:41:00.0"].text) == Binding(asked, asked, (other,))
        assert plan.steps[0].target == asked
        assert REGISTRY.read_plan(plan.model_dump_json()) == plan

    def test_vfio_pci_has_but_one(self) -> None:
        assert self.overrides(planned(inventory_of(GPU))) == [("vfio-pci", ())]
        assert self.overrides(planned(inventory_of(GPU, drivers=("vfio-pci",)), driver="vfio_pci")) == [
            ("vfio-pci", ())
        ]

    @pytest.mark.parametrize("called", [VARIANT, REGISTERED])
    def test_the_one_that_is_registered_is_written(
        self, called: str, fast_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(rules._DRIVER_OF_MODULE, self.VARIANT, called)
        host = machine(copy(original("gh200")), fast_folder / "x.db")
        before = host.inventory().by_address[PciAddress(self.GH200)]
        plan = host.binding.plan_bind([self.GH200])
        assert (self.VARIANT, (self.REGISTERED,)) in self.overrides(plan)
        outcome = host.apply(plan)
        assert outcome.result == Result.DONE
        (found,) = (change for change in outcome.changes if change.kind == "binding")
        assert Binding.parse(found.after) == Binding(called, called)
        assert isinstance(host.session.kernel, Simulated)
        written = [v for path, v in host.session.kernel.writes if path.endswith(f"{self.GH200}/driver_override")]
        assert written == [called]
        assert host.binding.plan_bind([self.GH200]).nothing_to_do
        host.apply(host.binding.plan_unbind([self.GH200]))
        assert binding_of(host.inventory().by_address[PciAddress(self.GH200)]) == binding_of(before)

    def test_and_taken_back_by_whichever_name(self, fast_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(rules._DRIVER_OF_MODULE, self.VARIANT, self.REGISTERED)
        start = original("gh200")
        steps = effects_of(machine(copy(start), fast_folder / "x.db").binding.plan_bind([self.GH200]))
        for at, step in enumerate(steps, start=1):
            tree = copy(start)
            host = machine(tree, fast_folder / "x.db", [Fault(at, "errno", errno.EIO)])
            with pytest.raises(KernelRefused) as caught:
                host.apply(host.binding.plan_bind([self.GH200]))
            assert caught.value.restored.endswith("put back as before"), step
            assert differing(state(tree), state(start)) == [], step
            assert host.history()[0].state == JournalState.BACK


class TestRefusals:
    def test_without_groups_says_why(self) -> None:
        host = inventory_of(GPU, iommu=Iommu(kind=None, translating=False, reason="switched off in the firmware"))
        error = refused(NoIommu, host)
        assert (error.message, error.hint) == ("this host has no IOMMU groups", "switched off in the firmware")

    def test_a_device_in_no_group_is_named(self) -> None:
        groupless = [replace(each, iommu_group=None) for each in (GPU, AUDIO)]
        assert "0000:41:00.0 (10de:2330, nvidia) is in no" in refused(NoIommu, inventory_of(groupless[0])).message
        assert "0000:41:00.1 (10de:2330, snd_hda_intel) is" in refused(NoIommu, inventory_of(GPU, groupless[1])).message

    def test_the_boot_display_is_kept_unless_allowed(self) -> None:
        gpu = replace(GPU, boot_vga=True)
        error = refused(DeviceInUse, inventory_of(gpu, AUDIO), "0000:41:00.1")
        assert error.message.startswith("0000:41:00.0 (10de:2330, nvidia) is the boot display")
        assert "--allow-boot-vga" in error.hint
        assert after(planned(inventory_of(gpu, AUDIO), allow_boot_vga=True)).keys() == {"0000:41:00.0", "0000:41:00.1"}
        there = replace(gpu, driver="vfio-pci", driver_override="vfio-pci")
        assert planned(inventory_of(there)).nothing_to_do

    def test_a_physical_function_with_live_vfs_is_in_use(self) -> None:
        vfs = tuple(PciAddress(f"41:02.{n}") for n in range(6))
        error = refused(DeviceInUse, inventory_of(replace(GPU, virtfns=vfs)))
        assert "has 6 live VFs: 0000:41:02.0, 0000:41:02.1, 0000:41:02.2, 0000:41:02.3" in error.message
        assert "vfioctl sriov off 0000:41:00.0" in error.hint

    @pytest.mark.parametrize("class_code", ["060400", "060000", "060401"])
    def test_a_bridge_is_no_endpoint(self, class_code: str) -> None:
        bridge = replace(BRIDGE, class_code=class_code, class_name="PCI bridge")
        error = refused(BadSpec, inventory_of(bridge, GPU), "0000:40:01.0")
        assert error.message == "0000:40:01.0 (10de:2330, pcieport) is a PCI bridge, not an endpoint"

    @pytest.mark.parametrize("who", [GPU, AUDIO])
    def test_a_function_that_cannot_be_read_is_in_use(self, who: Function) -> None:
        mute = replace(who, unknown={"driver_override": "no answer after 1 s"})
        host = inventory_of(*(mute if each is who else each for each in (GPU, AUDIO)))
        error = refused(DeviceInUse, host)
        assert str(who.address) in error.message
        assert "no answer after 1 s" in error.message

    def test_a_function_of_which_something_else_is_unknown_can_be_bound(self) -> None:
        assert after(planned(inventory_of(replace(GPU, unknown={"numa_node": "EIO"}))))

    @pytest.mark.parametrize("name", ["iommu-off", "iommu-firmware"])
    def test_on_a_host_with_the_iommu_off_the_hint_says_where(self, name: str) -> None:
        with pytest.raises(NoIommu) as caught:
            Host.recorded(str(HOSTS / f"{name}.host")).binding.plan_bind(["gpu0"], allow_boot_vga=True)
        assert {"iommu-off": "intel_iommu=off", "iommu-firmware": "BIOS"}[name] in caught.value.hint


def answer(host: Host, gpu: PciAddress) -> Plan | VfioctlError:
    try:
        return host.binding.plan_bind([gpu])
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
                assert host.read_plan(found.model_dump_json()) == found
                assert answer(host, gpu) == found

    def test_the_workstations_card_in_two_groups(self) -> None:
        plan = Host.recorded(str(HOSTS / "workstation.host")).binding.plan_bind(["05:00.0"])
        assert plan.checks == viable(7, 8)

    def test_the_superchips_own_vfio_driver(self) -> None:
        plan = Host.recorded(str(HOSTS / "gh200.host")).binding.plan_bind(["gpu0"])
        assert after(plan)["0009:01:00.0"].driver == "nvgrace_gpu_vfio_pci"
        assert plan.steps[0].target == "nvgrace_gpu_vfio_pci"
