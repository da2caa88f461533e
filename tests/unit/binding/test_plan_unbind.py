"""What is given back, and to whom: the previous driver, the one asked for, or the kernel's own choice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.hosts.machines import REGISTRY, copy, function, inventory_of, machine, original
from vfioctl.binding.model.binding import KERNEL_CHOICE, Binding, Bindings
from vfioctl.binding.model.intents import UnbindIntent
from vfioctl.binding.plan.bind import plan_unbind
from vfioctl.core.change import Change, Plan, Result
from vfioctl.errors import BadSpec, DeviceInUse, VfioctlError
from vfioctl.inventory.model.functions import Function
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.protocol import PCI_DEVICES, PCI_DRIVERS
from vfioctl.kernel.simulated.groups import driver_of

VFIO = {"driver": "vfio-pci", "driver_override": "vfio-pci"}
GPU = function("41:00.0", iommu_group=12, **VFIO)
AUDIO = function("41:00.1", "040300", iommu_group=12, available_drivers=("snd_hda_intel",), **VFIO)
DISK = function("42:00.0", "010802", iommu_group=12, available_drivers=("nvme",), **VFIO)
CHOICE = Binding(driver=KERNEL_CHOICE, driver_override=None)
DRIVERS = ("nvidia", "nvme", "snd_hda_intel", "vfio-pci")


def was(driver: str | None, override: str | None = None) -> Binding:
    return Binding(driver=driver, driver_override=override)


def planned(
    *functions: Function, records: Bindings | None = None, settings: tuple[Change, ...] = (), **wishes: object
) -> Plan:
    known: dict[str, object] = {"devices": ("0000:41:00.0",)}
    host = inventory_of(*functions, drivers=DRIVERS)
    return REGISTRY.plan(
        plan_unbind(host, UnbindIntent.model_validate(known | wishes), records or {}, settings=settings)
    )


def after(plan: Plan) -> dict[str, Binding]:
    return {change.subject: Binding.parse(change.after) for change in plan.changes_of("binding")}


def refused(kind: type[VfioctlError], *functions: Function, driver: str | None = None) -> VfioctlError:
    with pytest.raises(kind) as caught:
        planned(*functions, driver=driver)
    assert caught.value.hint
    return caught.value


def loaded(plan: Plan) -> list[str]:
    return [step.target for step in plan.steps if step.action == "load"]


class TestWithARecord:
    RECORDS = {GPU.address: was("nvidia"), AUDIO.address: was("snd_hda_intel", "snd_hda_intel")}  # noqa: RUF012 - constant

    def test_previous_driver_and_previous_override_come_back(self) -> None:
        plan = planned(GPU, AUDIO, records=self.RECORDS)
        assert after(plan) == {str(address): binding for address, binding in self.RECORDS.items()}
        assert "viable" not in [check.kind for check in plan.checks]
        assert plan.notes == ()

    def test_one_that_had_no_driver_gets_none(self) -> None:
        plan = planned(GPU, records={GPU.address: was(None)})
        assert after(plan) == {"0000:41:00.0": was(None)}
        assert [step.target.rpartition("/")[2] for step in plan.steps if step.action != "unheld"] == [
            "driver_override",
            "unbind",
        ]

    def test_its_module_is_loaded_again(self) -> None:
        gpu = replace(GPU, available_drivers=("amdgpu", "vfio-pci"))
        assert planned(gpu, records={GPU.address: was("amdgpu")}).steps[0].target == "amdgpu"

    def test_a_module_with_another_name_than_its_driver_is_found(self) -> None:
        usb = replace(GPU, available_drivers=("xhci_pci", "vfio-pci"))
        assert loaded(planned(usb, records={GPU.address: was("xhci_hcd")})) == ["xhci_pci"]
        nobody = replace(GPU, available_drivers=("vfio-pci",))
        assert loaded(planned(nobody, records={GPU.address: was("odd")})) == ["odd"]

    def test_a_stranger_that_came_along_goes_back_too(self) -> None:
        records = {GPU.address: was("nvidia"), DISK.address: was("nvme")}
        assert after(planned(GPU, DISK, records=records)) == {str(a): binding for a, binding in records.items()}

    def test_one_without_a_driver_by_now_goes_back_too(self) -> None:
        lost = replace(GPU, driver=None)
        assert after(planned(lost, records=self.RECORDS)) == {"0000:41:00.0": was("nvidia")}

    def test_one_that_is_back_already_is_left_alone(self) -> None:
        back = replace(GPU, driver="nvidia", driver_override=None)
        assert planned(back, records=self.RECORDS).nothing_to_do


class TestWithoutARecord:
    def test_the_kernel_chooses_and_the_plan_says_so(self) -> None:
        plan = planned(GPU, AUDIO)
        assert after(plan) == {"0000:41:00.0": CHOICE, "0000:41:00.1": CHOICE}
        assert "0000:41:00.0 has no record here: the kernel chooses its driver" in plan.notes

    def test_a_stranger_stays_where_it_is_unless_asked(self) -> None:
        plan = planned(GPU, DISK)
        assert after(plan) == {"0000:41:00.0": CHOICE}
        assert any("is left as it is" in note for note in plan.notes)
        assert after(planned(GPU, DISK, with_group=True))["0000:42:00.0"] == CHOICE

    def test_a_function_on_its_own_driver_is_left_alone(self) -> None:
        native = replace(GPU, driver="nvidia", driver_override=None)
        audio = replace(AUDIO, driver="snd_hda_intel", driver_override=None)
        assert planned(native, audio).nothing_to_do

    @pytest.mark.parametrize("override", [None, "vfio-pci"])
    def test_a_function_without_a_driver_is_offered_to_the_kernel(self, override: str | None) -> None:
        plan = planned(replace(GPU, driver=None, driver_override=override))
        assert after(plan) == {"0000:41:00.0": CHOICE}
        assert plan.steps[-1].target == "/sys/bus/pci/drivers_probe"

    def test_a_function_that_nobody_drives_is_left_alone(self) -> None:
        alone = replace(GPU, driver=None, driver_override=None, available_drivers=("vfio-pci",))
        assert planned(alone).nothing_to_do

    def test_a_companion_without_a_driver_is_left_alone(self) -> None:
        plan = planned(GPU, replace(AUDIO, driver=None, driver_override=None))
        assert after(plan).keys() == {"0000:41:00.0"}


class TestToADriver:
    def test_the_devices_asked_for_get_it_and_their_companions_their_own(self) -> None:
        gpu = replace(GPU, available_drivers=("nvidia", "nouveau", "vfio-pci"))
        plan = planned(gpu, AUDIO, records={AUDIO.address: was("snd_hda_intel")}, driver="nouveau")
        assert after(plan) == {"0000:41:00.0": was("nouveau"), "0000:41:00.1": was("snd_hda_intel")}
        assert loaded(plan) == ["nouveau"]

    def test_one_native_driver_can_be_changed_for_another(self) -> None:
        gpu = replace(GPU, driver="nouveau", driver_override=None)
        plan = planned(gpu, driver="nvidia")
        assert after(plan) == {"0000:41:00.0": was("nvidia")}
        assert planned(gpu, driver="nouveau").nothing_to_do

    def test_a_vfio_driver_is_a_bind(self) -> None:
        command = refused(BadSpec, GPU, driver="vfio-pci").next_command
        assert command == "vfioctl bind 0000:41:00.0 --driver vfio-pci"

    def test_what_is_no_name_is_refused(self) -> None:
        with pytest.raises(BadSpec, match="not a driver's name"):
            planned(GPU, driver="../x")

    def test_the_boot_display_in_use_keeps_its_driver(self) -> None:
        shown = replace(GPU, driver="nvidia", driver_override=None, boot_vga=True)
        shown = replace(shown, available_drivers=("nvidia", "nouveau", "vfio-pci"))
        assert "boot display and in use" in refused(DeviceInUse, shown, driver="nouveau").message
        assert planned(shown).nothing_to_do
        dark = replace(GPU, boot_vga=True)
        assert after(planned(dark, driver="nvidia")) == {"0000:41:00.0": was("nvidia")}


class TestRefusals:
    def test_a_bridge_is_no_endpoint(self) -> None:
        assert "not an endpoint" in refused(BadSpec, function("41:00.0", "060400")).message

    def test_a_function_that_cannot_be_read_is_in_use(self) -> None:
        mute = replace(GPU, unknown={"driver_override": "EIO"})
        assert "cannot be read: EIO" in refused(DeviceInUse, mute).message


@pytest.mark.parametrize("goal", [was(None), CHOICE, was("nvidia"), was("vfio_pci", "vfio-pci"), was("snd-hda-intel")])
def test_no_module_is_loaded_for_what_is_there(goal: Binding) -> None:
    plan = planned(GPU, records={GPU.address: goal})
    assert loaded(plan) == []
    assert not plan.changes_of("module")


class TestSettings:
    """What was set for VFIO is put back with the device that it was set for."""

    MODE = Change(kind="persistence", name=GPU.address, subject=GPU.address, before="0", after="1", may_fail=True)

    @pytest.mark.parametrize(("driver", "back"), [("nvidia", True), (KERNEL_CHOICE, True), ("nouveau", False)])
    def test_the_mode_only_where_nvml_will_know_the_gpu(self, driver: str, back: bool) -> None:
        plan = planned(GPU, records={GPU.address: was(driver)}, settings=(self.MODE,))
        assert plan.changes_of("persistence") == ((self.MODE,) if back else ())
        assert plan.nothing_to_do is False

    def test_none_of_a_function_that_stays(self) -> None:
        other = self.MODE.model_copy(update={"name": DISK.address, "subject": DISK.address})
        assert not planned(GPU, DISK, settings=(other,)).changes_of("persistence")

    def test_none_where_no_device_moves(self) -> None:
        back = replace(GPU, driver="nvidia", driver_override=None)
        assert planned(back, settings=(self.MODE,)).nothing_to_do


class TestWhatIsWrittenIsWhatThePlanShows:
    def test_a_driver_is_spelled_as_it_is_registered(self) -> None:
        plan = planned(AUDIO, devices=(AUDIO.address,), driver="snd-hda-intel")
        assert after(plan) == {AUDIO.address: was("snd_hda_intel")}
        assert [step.value for step in plan.steps if step.action == "override"] == ["snd_hda_intel", "\n"]

    def test_all_spellings_are_listed_of_one_that_is_not_registered(self) -> None:
        gpu = replace(GPU, available_drivers=("i2c_nvidia_gpu", "vfio-pci"))
        plan = planned(gpu, driver="i2c_nvidia-gpu")
        aims = [(step.value, step.alternatives) for step in plan.steps if step.action == "override"]
        assert aims == [("i2c_nvidia-gpu", ("i2c-nvidia-gpu", "i2c_nvidia_gpu")), ("\n", ())]


def test_on_a_real_host_the_kernels_choice_is_the_native_driver(fast_folder: Path) -> None:
    tree, gpu = copy(original("workstation")), PciAddress("0000:0b:00.0")
    host = machine(tree, fast_folder / "x.db")
    host.session.kernel.write(f"{PCI_DRIVERS}/nvidia/unbind", gpu)
    assert host.apply(host.binding.plan_unbind([gpu])).result == Result.DONE
    assert driver_of(tree, tree.resolve(f"{PCI_DEVICES}/{gpu}")) == "nvidia"
    assert host.binding.plan_unbind([gpu]).nothing_to_do
