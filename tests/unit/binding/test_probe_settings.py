"""The settings around a function as they are read: what belongs to it, what is left alone, what does not answer."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.hosts.machines import DAEMON, DCGM, DESKTOP, REGISTRY, SCREEN, TRAINING, copy, in_use, original
from tests.probing import read_inventory
from vfioctl.binding.probe.settings import idle_devices_sleep, read_settings
from vfioctl.core.change import Change
from vfioctl.core.reading import read_changes
from vfioctl.errors import DeviceInUse
from vfioctl.inventory.model.functions import Function
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.simulated.host import Simulated

CONSOLE = "/sys/class/vtconsole/vtcon1/bind"
LOCK = f"/proc/driver/nvidia/gpus/{TRAINING}/unbindLock"
FRAMEBUFFER = "efi-framebuffer.0"


@pytest.fixture
def kernel() -> Simulated:
    return Simulated(copy(in_use()), "")


def functions(kernel: Simulated, *addresses: str) -> list[Function]:
    known = read_inventory(kernel).by_address
    return [known[PciAddress(address)] for address in addresses]


def found(kernel: Simulated, *addresses: str, units: tuple[tuple[str, PciAddress], ...] = ()) -> Mapping[str, object]:
    """The values by kind; each kind is there once."""
    readings = read_settings(kernel, functions(kernel, *addresses), units)
    values = {reading.kind: reading.value for reading in readings}
    assert len(values) == len(readings)
    return {str(kind): value for kind, value in values.items()}


class TestOfAFunction:
    def test_nvidias_gpu_has_a_lock_and_a_mode(self, kernel: Simulated) -> None:
        assert found(kernel, TRAINING) == {"power": "on", "d3cold": "1", "lock": "0", "persistence": "1"}

    def test_the_screen_has_a_console_and_what_the_firmware_left(self, kernel: Simulated) -> None:
        assert found(kernel, SCREEN) == {
            "power": "on",
            "d3cold": "1",
            "console": "1",
            "framebuffer": "efi-framebuffer",
        }

    def test_a_companion_has_neither(self, kernel: Simulated) -> None:
        assert found(kernel, "0000:09:00.1") == {"power": "on", "d3cold": "1"}

    def test_a_vf_has_no_mode_of_its_own(self) -> None:
        kernel = Simulated(copy(original("mi300x")), "")
        vf = next(f for f in read_inventory(kernel).functions if f.is_vf)
        native = replace(vf, driver="nvidia")
        assert "persistence" not in {each.kind for each in read_settings(kernel, [native])}

    def test_a_mode_that_nvml_does_not_tell_is_unknown(self, kernel: Simulated) -> None:
        del kernel.tree.properties[f"nvml:{TRAINING}"]["persistence_mode"]
        assert found(kernel, TRAINING)["persistence"] is None
        del kernel.tree.properties[f"nvml:{TRAINING}"]
        assert found(kernel, TRAINING)["persistence"] is None

    def test_a_lock_that_cannot_be_read_is_there_all_the_same(self, kernel: Simulated) -> None:
        kernel.tree.remove(LOCK)
        kernel.tree.put_refused(LOCK, errno.EACCES)
        assert found(kernel, TRAINING)["lock"] is None

    @pytest.mark.parametrize("text", ["", "enabled", "10", "on\nauto", "\u0661", "x" * 10_000])
    def test_what_no_kernel_says_is_left_alone(self, kernel: Simulated, text: str) -> None:
        home = kernel.tree.resolve(f"/sys/bus/pci/devices/{SCREEN}")
        for file in (f"{home}/power/control", f"{home}/d3cold_allowed", kernel.tree.resolve(CONSOLE)):
            kernel.tree.put(file, text)
        assert found(kernel, SCREEN) == {"framebuffer": "efi-framebuffer"}

    def test_what_cannot_be_read_is_left_alone(self, kernel: Simulated) -> None:
        home = kernel.tree.resolve(f"/sys/bus/pci/devices/{TRAINING}")
        for file in ("power/control", "d3cold_allowed"):
            kernel.tree.remove(f"{home}/{file}")
            kernel.tree.put_refused(f"{home}/{file}", errno.EACCES)
        assert found(kernel, TRAINING).keys() == {"lock", "persistence"}

    def test_what_does_not_answer_makes_the_device_one_in_use(self, kernel: Simulated) -> None:
        kernel.tree.properties[f"sim:{CONSOLE}"] = {"blocked": '["", ""]'}
        with pytest.raises(DeviceInUse, match=f"what goes with {SCREEN} cannot be read: no answer") as caught:
            found(kernel, SCREEN)
        assert "text console" in caught.value.hint
        assert found(kernel, TRAINING), "others are not concerned"


class TestConsoles:
    def framebuffer(self, kernel: Simulated, name: str) -> None:
        kernel.tree.put(f"{kernel.tree.resolve(f'/sys/bus/pci/devices/{TRAINING}')}/graphics/{name}/dev", "29:1")

    def test_stand_on_the_first_framebuffer(self, kernel: Simulated) -> None:
        kernel.tree.put_link("/sys/class/graphics/fb0", "../../devices/x")
        self.framebuffer(kernel, "fb1")
        assert "console" not in found(kernel, TRAINING)
        kernel.tree.remove("/sys/class/graphics/fb0")
        assert "console" in found(kernel, TRAINING), "it is the first that there is"

    def test_may_stand_on_any_where_they_are_mapped(self, kernel: Simulated) -> None:
        kernel.tree.put_link("/sys/class/graphics/fb0", "../../devices/x")
        self.framebuffer(kernel, "fb1")
        kernel.tree.put("/proc/cmdline", "quiet fbcon=map:1")
        assert "console" in found(kernel, TRAINING)

    def test_that_are_no_framebuffers_are_left_alone(self, kernel: Simulated) -> None:
        kernel.tree.put(kernel.tree.resolve("/sys/class/vtconsole/vtcon1/name"), "(S) VGA+")
        assert "console" not in found(kernel, SCREEN)
        kernel.tree.remove("/sys/class/vtconsole")
        assert "console" not in found(kernel, SCREEN)


class TestFirmware:
    def test_belongs_to_the_boot_display_alone(self, kernel: Simulated) -> None:
        assert "framebuffer" not in found(kernel, TRAINING)

    @pytest.mark.parametrize(("driver", "name"), [("simpledrm", "simple-framebuffer.0"), ("vga16fb", "vga16fb.0")])
    def test_is_found_under_each_driver(self, kernel: Simulated, driver: str, name: str) -> None:
        kernel.tree.remove("/sys/bus/platform/drivers/efi-framebuffer")
        kernel.tree.put_link(f"/sys/bus/platform/drivers/{driver}/{name}", f"../../../../devices/platform/{name}")
        (one,) = (each for each in read_settings(kernel, functions(kernel, SCREEN)) if each.kind == "framebuffer")
        assert (one.name, one.value, one.address) == (name, driver, SCREEN)

    @pytest.mark.parametrize("name", ["bind", "uevent", "module", "x", "7e00.fb", "a/b.0", "Efi.0", "x" * 40 + ".0"])
    def test_is_nothing_that_a_plan_could_not_name(self, kernel: Simulated, name: str) -> None:
        kernel.tree.remove(f"/sys/bus/platform/drivers/efi-framebuffer/{FRAMEBUFFER}")
        kernel.tree.put(f"/sys/bus/platform/drivers/efi-framebuffer/{name}", "")
        assert "framebuffer" not in found(kernel, SCREEN)


class TestServices:
    @pytest.mark.parametrize(
        ("state", "counts_as"),
        [
            ("active", "active"),
            ("activating", "active"),
            ("reloading", "active"),
            ("inactive", "inactive"),
            ("failed", "inactive"),
            ("deactivating", "inactive"),
            ("maintenance", "inactive"),
        ],
    )
    def test_run_or_do_not(self, kernel: Simulated, state: str, counts_as: str) -> None:
        kernel.tree.properties[f"unit:{DCGM}"]["state"] = state
        assert found(kernel, units=((DCGM, TRAINING),)) == {"service": counts_as}
        again = Change(kind="service", name=DCGM, subject=TRAINING, before="active", after="inactive")
        assert read_changes(kernel, REGISTRY, [again]) == {again.key: counts_as}

    def test_that_are_not_known_are_left_out(self, kernel: Simulated) -> None:
        assert found(kernel, units=(("no.service", TRAINING),)) == {}

    def test_are_there_once_each(self, kernel: Simulated) -> None:
        units = tuple((name, TRAINING) for name in (DCGM, DAEMON, DCGM, DESKTOP))
        assert len(read_settings(kernel, [], units)) == 3


class TestAgain:
    def read(self, kernel: Simulated, kind: str, name: str, before: str = "1", after: str = "0") -> str | None:
        address = SCREEN if SCREEN in name or kind == "framebuffer" else TRAINING
        one = Change(kind=kind, name=name, subject=address, before=before, after=after)
        (value,) = read_changes(kernel, REGISTRY, [one]).values()
        return value

    def test_is_what_is_there_now(self, kernel: Simulated) -> None:
        assert self.read(kernel, "console", CONSOLE) == "1"
        kernel.write(CONSOLE, "0")
        assert self.read(kernel, "console", CONSOLE) == "0"
        assert self.read(kernel, "lock", LOCK) == "0"

    def test_is_nothing_where_it_has_gone_or_does_not_answer(self, kernel: Simulated) -> None:
        kernel.tree.properties[f"sim:{CONSOLE}"] = {"blocked": '["", ""]'}
        assert self.read(kernel, "console", CONSOLE) is None
        kernel.tree.remove(LOCK)
        assert self.read(kernel, "lock", LOCK) is None

    def test_is_nothing_of_a_mode(self, kernel: Simulated) -> None:
        assert self.read(kernel, "persistence", TRAINING) is None

    @pytest.mark.parametrize(("before", "after"), [("efi-framebuffer", ""), ("", "efi-framebuffer")])
    def test_a_framebuffer_is_bound_or_not(self, kernel: Simulated, before: str, after: str) -> None:
        def now() -> str | None:
            return self.read(kernel, "framebuffer", FRAMEBUFFER, before, after)

        kernel.tree.put_link(f"/sys/bus/platform/devices/{FRAMEBUFFER}", f"../../../devices/platform/{FRAMEBUFFER}")
        assert now() == "efi-framebuffer"
        kernel.write("/sys/bus/platform/drivers/efi-framebuffer/unbind", FRAMEBUFFER)
        assert now() == ""
        kernel.tree.remove(f"/sys/bus/platform/devices/{FRAMEBUFFER}")
        assert now() is None, "the device itself has gone"


@pytest.mark.parametrize(("text", "sleeps"), [("N", True), ("Y\n", False), ("y", False), ("", True), (None, None)])
def test_whether_vfio_pci_lets_devices_sleep(text: str | None, sleeps: bool | None) -> None:
    tree = copy(original("workstation"))
    if text is not None:
        tree.put("/sys/module/vfio_pci/parameters/disable_idle_d3", text)
    assert idle_devices_sleep(Simulated(tree, "")) is sleeps
