"""What surrounds a simulated driver, beyond the contract: errnos, NVIDIA's lock, services, who must be waited for."""

from __future__ import annotations

import json

import pytest

from tests.hosts.machines import (
    DAEMON,
    DCGM,
    DESKTOP,
    SCREEN,
    TRAINING,
    add_process,
    copy,
    differing,
    in_use,
    original,
    state,
)
from vfioctl.errors import HostError, KernelRefused, Stuck
from vfioctl.kernel.lenient import text
from vfioctl.kernel.protocol import DRIVERS_PROBE, PCI_DEVICES, PCI_DRIVERS, Unanswered
from vfioctl.kernel.recorded.tree import form, parse
from vfioctl.kernel.simulated import class_devices
from vfioctl.kernel.simulated.faults import WouldBlock
from vfioctl.kernel.simulated.host import Simulated

LOCK = f"/proc/driver/nvidia/gpus/{TRAINING}/unbindLock"
CONSOLE, DUMMY = (f"/sys/class/vtconsole/vtcon{number}/bind" for number in (1, 0))
EFI = "/sys/bus/platform/drivers/efi-framebuffer"
SOUND = "0000:09:00.1"


@pytest.fixture
def kernel() -> Simulated:
    return Simulated(copy(in_use()), "")


def refusal(kernel: Simulated, path: str, value: str) -> str:
    with pytest.raises(KernelRefused) as caught:
        kernel.write(path, value)
    assert caught.value.text == value
    return caught.value.symbol


def device(attribute: str, address: str = TRAINING) -> str:
    return f"{PCI_DEVICES}/{address}/{attribute}"


def processes(kernel: Simulated) -> set[str]:
    return {name for name in kernel.children("/proc") if name.isdecimal()}


class TestPower:
    @pytest.mark.parametrize("value", ["on", "auto", "on\n", "auto\n\n"])
    def test_control_takes_two_words(self, kernel: Simulated, value: str) -> None:
        kernel.write(device("power/control"), value)
        assert kernel.read(device("power/control")) == value.strip()

    @pytest.mark.parametrize("value", ["off", "ON", "1", " on", "\n", "on auto"])
    def test_control_takes_no_other(self, kernel: Simulated, value: str) -> None:
        assert refusal(kernel, device("power/control"), value) == "EINVAL"

    @pytest.mark.parametrize(("value", "read"), [("0", "0"), ("1", "1"), ("7\n", "1"), ("00", "0")])
    def test_d3cold_is_a_number(self, kernel: Simulated, value: str, read: str) -> None:
        kernel.write(device("d3cold_allowed"), value)
        assert kernel.read(device("d3cold_allowed")) == read

    @pytest.mark.parametrize("value", ["y", "-1", "0x1", "1 ", "\u0661", "\n"])
    def test_d3cold_is_nothing_else(self, kernel: Simulated, value: str) -> None:
        assert refusal(kernel, device("d3cold_allowed"), value) == "EINVAL"

    def test_what_is_not_there_cannot_be_written(self, kernel: Simulated) -> None:
        assert refusal(kernel, device("power/controls"), "on") == "ENOENT"
        assert refusal(kernel, "/sys/class/vtconsole/vtcon9/bind", "1") == "ENOENT"
        assert refusal(kernel, device("reset_subordinate"), "1") == "ENOENT"


class TestConsoles:
    def bound(self, kernel: Simulated) -> tuple[str, str]:
        return kernel.read(CONSOLE), kernel.read(DUMMY)

    def test_take_turns(self, kernel: Simulated) -> None:
        assert self.bound(kernel) == ("1", "0")
        kernel.write(CONSOLE, "0")
        assert self.bound(kernel) == ("0", "1")
        kernel.write(CONSOLE, "1\n")
        assert self.bound(kernel) == ("1", "0")

    def screen(self, kernel: Simulated, *, there: bool) -> None:
        if there:
            kernel.write(DRIVERS_PROBE, SCREEN)
        else:
            kernel.write(f"{PCI_DRIVERS}/amdgpu/unbind", SCREEN)

    def test_fall_back_with_the_framebuffer_and_come_back_with_it(self, kernel: Simulated) -> None:
        self.screen(kernel, there=False)
        assert self.bound(kernel) == ("0", "1")
        self.screen(kernel, there=True)
        assert self.bound(kernel) == ("1", "0")

    def test_released_by_hand_stay_released_until_they_are_put_back_by_hand(self, kernel: Simulated) -> None:
        kernel.write(CONSOLE, "0")
        self.screen(kernel, there=False)
        self.screen(kernel, there=True)
        assert self.bound(kernel) == ("0", "1")
        kernel.write(CONSOLE, "1")
        self.screen(kernel, there=False)
        self.screen(kernel, there=True)
        assert self.bound(kernel) == ("1", "0"), "as if nothing had been"

    def test_do_not_follow_a_framebuffer_that_is_not_the_first(self, kernel: Simulated) -> None:
        kernel.tree.put(f"{kernel.tree.resolve(device('graphics'))}/fb1/dev", "29:1")
        kernel.write(f"{PCI_DRIVERS}/nvidia/unbind", TRAINING)
        assert self.bound(kernel) == ("1", "0")

    def test_without_a_framebuffer_console_there_is_nothing_to_draw(self) -> None:
        tree = copy(in_use())
        tree.put(tree.resolve("/sys/class/vtconsole/vtcon1/name"), "(S) VGA+")
        kernel = Simulated(tree, "")
        self.screen(kernel, there=False)
        assert self.bound(kernel) == ("1", "0")

    def test_an_empty_write_does_nothing(self, kernel: Simulated) -> None:
        kernel.write(CONSOLE, "")
        assert self.bound(kernel) == ("1", "0")


class TestFirmwareFramebuffers:
    def test_go_and_come_back(self, kernel: Simulated) -> None:
        before = state(kernel.tree)
        kernel.write(f"{EFI}/unbind", "efi-framebuffer.0")
        assert not kernel.has(f"{EFI}/efi-framebuffer.0")
        assert refusal(kernel, f"{EFI}/unbind", "efi-framebuffer.0") == "ENODEV"
        kernel.write(f"{EFI}/bind", "efi-framebuffer.0\n")
        assert not differing(state(kernel.tree), before)
        assert refusal(kernel, f"{EFI}/bind", "efi-framebuffer.0") == "ENODEV"

    @pytest.mark.parametrize("name", ["efi-framebuffer.1", "efi-framebuffer", "../x.0", "\n", "a b.0"])
    def test_of_other_names_are_not_there(self, kernel: Simulated, name: str) -> None:
        assert refusal(kernel, f"{EFI}/unbind", name) == "ENODEV"


class TestClassDevices:
    def test_of_a_driver_go_with_it_and_come_back_as_they_were(self, kernel: Simulated) -> None:
        before, homes = state(kernel.tree), [device("drm", SCREEN), device("graphics", SCREEN), device("sound", SOUND)]
        kernel.write(f"{PCI_DRIVERS}/amdgpu/unbind", SCREEN)
        kernel.write(f"{PCI_DRIVERS}/snd_hda_intel/unbind", SOUND)
        assert not any(kernel.has(home) for home in homes)
        assert kernel.below(f"{PCI_DEVICES}/{SCREEN}") == []
        kernel.write(DRIVERS_PROBE, SCREEN)
        kernel.write(DRIVERS_PROBE, SOUND)
        assert all(kernel.has(home) for home in homes)
        assert not differing(state(kernel.tree), before)

    def test_stay_away_under_vfio_and_outlast_the_file(self, kernel: Simulated) -> None:
        kernel.write(device("driver_override", SCREEN), "vfio-pci")
        kernel.write(f"{PCI_DRIVERS}/amdgpu/unbind", SCREEN)
        kernel.write(DRIVERS_PROBE, SCREEN)
        assert not kernel.has(device("drm", SCREEN))
        again = Simulated(parse(form(kernel.tree), "again"), "")
        again.write(f"{PCI_DRIVERS}/vfio-pci/unbind", SCREEN)
        again.write(device("driver_override", SCREEN), "\n")
        again.write(DRIVERS_PROBE, SCREEN)
        assert again.has(device("drm", SCREEN))

    def test_of_every_kind_of_fact(self, kernel: Simulated) -> None:
        tree = kernel.tree
        home = tree.resolve(device("drm"))
        tree.put_refused(f"{home}/secret", 13)
        tree.put_directory(f"{home}/empty")
        tree.put_link(f"{home}/up", "..")
        before = form(tree).splitlines()
        kernel.write(f"{PCI_DRIVERS}/nvidia/unbind", TRAINING)
        kernel.write(DRIVERS_PROBE, TRAINING)
        assert [line for line in form(tree).splitlines() if line not in before] == []

    def test_nvidias_files_go_too(self, kernel: Simulated) -> None:
        kernel.write(LOCK, "0")
        kernel.write(f"{PCI_DRIVERS}/nvidia/unbind", TRAINING)
        assert not kernel.has(f"/proc/driver/nvidia/gpus/{TRAINING}")
        kernel.write(DRIVERS_PROBE, TRAINING)
        assert kernel.read(LOCK) == "0"


class TestTheLock:
    def free(self, kernel: Simulated) -> None:
        for unit in (DAEMON, DCGM):
            kernel.set_unit(unit, active=False)
        kernel.persist(TRAINING, on=False)

    def test_is_granted_when_nobody_uses_the_gpu(self, kernel: Simulated) -> None:
        kernel.write(LOCK, "1")
        assert kernel.read(LOCK) == "0", "it takes the write, and does not grant it"
        self.free(kernel)
        kernel.write(LOCK, "1\n")
        assert kernel.read(LOCK) == "1"
        kernel.write(LOCK, "0")
        assert kernel.read(LOCK) == "0"

    @pytest.mark.parametrize("who", ["mode", "service", "process", "unseen"])
    def test_is_not_granted_while_anybody_does(self, kernel: Simulated, who: str) -> None:
        self.free(kernel)
        if who == "mode":
            kernel.persist(TRAINING, on=True)
        elif who == "service":
            kernel.set_unit(DCGM, active=True)
        elif who == "process":
            add_process(kernel.tree, 77, "x", "0::/", "/dev/nvidia0")
        else:
            kernel.tree.properties.setdefault(f"sim:{TRAINING}", {})["in_use"] = "1"
        kernel.write(LOCK, "1")
        assert kernel.read(LOCK) == "0"

    def test_is_open_after_a_new_binding(self, kernel: Simulated) -> None:
        self.free(kernel)
        kernel.write(LOCK, "1")
        kernel.write(f"{PCI_DRIVERS}/nvidia/unbind", TRAINING)
        kernel.write(DRIVERS_PROBE, TRAINING)
        assert kernel.read(LOCK) == "0"

    def test_of_a_gpu_without_a_number_is_used_by_nobody(self, kernel: Simulated) -> None:
        kernel.tree.put(f"/proc/driver/nvidia/gpus/{TRAINING}/information", "Model: x")
        kernel.persist(TRAINING, on=False)
        kernel.write(LOCK, "1")
        assert kernel.read(LOCK) == "1"


class TestServices:
    def test_end_with_their_processes_and_come_back_with_them(self, kernel: Simulated) -> None:
        before, facts = processes(kernel), form(kernel.tree)
        kernel.set_unit(DESKTOP, active=False)
        assert kernel.unit_states([DESKTOP, "no.service"]) == {DESKTOP: "inactive"}
        assert before - processes(kernel) == {"1440"}
        kernel.set_unit(DESKTOP, active=True)
        assert processes(kernel) == before
        assert form(kernel.tree) == facts

    def test_that_are_not_known_fail(self, kernel: Simulated) -> None:
        with pytest.raises(HostError, match=r"no.service cannot be stopped: no such unit"):
            kernel.set_unit("no.service", active=False)
        with pytest.raises(HostError, match="started"):
            kernel.set_unit("no.service", active=True)

    def test_persistence_keeps_the_daemon_at_the_gpu(self, kernel: Simulated) -> None:
        node = "/dev/nvidia0"
        mine = [link for link in class_devices.open_by(kernel.tree, node) if "/812/" in link]
        assert len(mine) == 1
        kernel.persist(TRAINING, on=False)
        assert not [link for link in class_devices.open_by(kernel.tree, node) if "/812/" in link]
        assert [link for link in class_devices.open_by(kernel.tree, node) if "/950/" in link], "of another service"

    def test_persistence_is_set_of_gpus_that_nvml_knows(self, kernel: Simulated) -> None:
        with pytest.raises(HostError, match="NVML does not know the GPU"):
            kernel.persist(SCREEN, on=False)


class TestResets:
    GPU = "0000:1b:00.0"

    @pytest.fixture
    def kernel(self) -> Simulated:
        return Simulated(copy(original("hgx8")), "")

    @pytest.mark.parametrize("value", ["0", "2", "yes", "\n"])
    def test_take_a_one(self, kernel: Simulated, value: str) -> None:
        assert refusal(kernel, device("reset", self.GPU), value) == "EINVAL"

    def test_are_counted_and_may_kill(self, kernel: Simulated) -> None:
        for _ in range(2):
            kernel.write(device("reset", self.GPU), "1")
        facts = kernel.tree.properties[f"sim:{self.GPU}"]
        assert facts["resets"] == "2"
        assert kernel.config(self.GPU)[:2] == b"\xde\x10"
        facts["dies_on_reset"] = "1"
        kernel.write(device("reset", self.GPU), "1\n")
        assert set(kernel.config(self.GPU)) == {0xFF}

    def test_of_the_bus_hit_all_below(self) -> None:
        tree = copy(original("workstation"))
        port = tree.resolve(device("", "0000:0a:00.0").rstrip("/")).rpartition("/")[0]
        tree.put(f"{port}/reset_subordinate", "")
        kernel = Simulated(tree, "")
        kernel.write(f"{port}/reset_subordinate", "1")
        hit = {s for s, facts in tree.properties.items() if facts.get("resets") == "1"}
        assert hit == {"sim:0000:0a:00.0", "sim:0000:0a:00.1"}

    @pytest.mark.parametrize(("value", "read"), [("bus", "bus"), ("bus flr", "bus flr"), ("default", "flr bus")])
    def test_methods_are_chosen_among_those_there_are(self, kernel: Simulated, value: str, read: str) -> None:
        path = device("reset_method", self.GPU)
        for word in ("flr", f"{value}\n"):
            kernel.write(path, word)
        assert kernel.read(path) == read

    @pytest.mark.parametrize("value", ["pm", "flr pm", "FLR", "x"])
    def test_no_others_are(self, kernel: Simulated, value: str) -> None:
        path = device("reset_method", self.GPU)
        assert refusal(kernel, path, value) == "EINVAL"
        assert kernel.read(path) == "flr bus"


class TestWhoMustBeWaitedFor:
    HANDED = "0000:02:00.0"

    def hangs(self, kernel: Simulated, driver: str, address: str) -> Stuck:
        with pytest.raises(Stuck) as caught:
            kernel.write(f"{PCI_DRIVERS}/{driver}/unbind", address)
        return caught.value

    def test_vfio_waits_for_the_guest(self) -> None:
        kernel = Simulated(copy(original("busy")), "")
        error = self.hangs(kernel, "vfio-pci", self.HANDED)
        assert error.facts["ticket"] == f"sim:{self.HANDED}"
        assert not kernel.has(device("driver", self.HANDED)), "the link has gone by then"
        assert kernel.write_ended(f"sim:{self.HANDED}") is None
        kernel.release(self.HANDED)
        assert kernel.write_ended(f"sim:{self.HANDED}") == "returned"

    def test_vfio_waits_for_nobody_when_the_guest_has_gone(self) -> None:
        kernel = Simulated(copy(original("busy")), "")
        kernel.tree.remove("/proc/2684")
        kernel.write(f"{PCI_DRIVERS}/vfio-pci/unbind", self.HANDED)

    def test_alsa_waits_for_who_plays(self, kernel: Simulated) -> None:
        kernel.write(f"{PCI_DRIVERS}/snd_hda_intel/unbind", "0000:04:00.1")
        add_process(kernel.tree, 77, "pipewire", "0::/", "/dev/snd/pcmC0D3p")
        self.hangs(kernel, "snd_hda_intel", SOUND)

    def test_an_unbinding_of_another_driver_is_refused_and_waits_for_nobody(self) -> None:
        kernel = Simulated(copy(original("busy")), "")
        assert refusal(kernel, f"{PCI_DRIVERS}/nvidia/unbind", self.HANDED) == "ENODEV"

    def test_what_is_under_the_lock_blocks_then_and_nothing_else(self, kernel: Simulated) -> None:
        add_process(kernel.tree, 77, "pipewire", "0::/", "/dev/snd/pcmC0D3p")
        self.hangs(kernel, "snd_hda_intel", SOUND)
        for attribute in ("driver_override", "reset"):
            with pytest.raises(WouldBlock):
                kernel.read(device(attribute, SOUND))
        with pytest.raises(WouldBlock):
            kernel.config(SOUND)
        with pytest.raises(Stuck):  # reading a ROM writes: as any write, it does not return
            kernel.rom(SOUND)
        assert kernel.read(device("vendor", SOUND)) == "0x1002"
        assert kernel.read(device("driver_override", SCREEN)) == "(null)"
        ((_, answer),) = kernel.survey(text, [device("driver_override", SOUND)])
        assert isinstance(answer, Unanswered)

    def test_another_write_to_it_hangs_behind_the_first(self, kernel: Simulated) -> None:
        add_process(kernel.tree, 77, "pipewire", "0::/", "/dev/snd/pcmC0D3p")
        self.hangs(kernel, "snd_hda_intel", SOUND)
        with pytest.raises(Stuck):
            kernel.write(device("driver_override", SOUND), "x")
        kernel.release(SOUND)
        kernel.write(device("driver_override", SOUND), "x")

    def test_a_refused_write_that_returns_late_changes_nothing(self, kernel: Simulated) -> None:
        kernel.tree.properties.setdefault("sim:x", {})["blocked"] = json.dumps([device("power/control"), "bogus"])
        before = form(kernel.tree).splitlines()
        kernel.release("x")
        assert {*form(kernel.tree).splitlines()} <= {*before}
