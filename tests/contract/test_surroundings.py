"""Power, consoles, resets and class devices: the simulated kernel behaves like the real one.

Uses the lab's devices: recorded and simulated here, real inside the lab.
"""

from __future__ import annotations

import errno

import pytest

from tests.contract.conftest import HostWithPair
from vfioctl.errors import KernelRefused
from vfioctl.kernel.protocol import PCI_DEVICES

CONSOLE = "/sys/class/vtconsole/vtcon1/bind"
SYSTEM_CONSOLE = "/sys/class/vtconsole/vtcon0/bind"


def refused(machine: HostWithPair, path: str, value: str) -> int:
    with pytest.raises(KernelRefused) as caught:
        machine.kernel.write(path, value)
    return caught.value.errno


def test_vfio_pci_lets_a_device_sleep_whatever_was_set_and_leaves_it_awake(lab_machine: HostWithPair) -> None:
    control = lab_machine.device("power/control")
    for before in ("on", "auto"):
        lab_machine.kernel.write(control, before)
        lab_machine.move(lab_machine.gpu, "vfio-pci")
        assert lab_machine.kernel.read(control) == "auto"
        lab_machine.kernel.write(control, "on")
        assert lab_machine.kernel.read(control) == "on"
        lab_machine.move(lab_machine.gpu, lab_machine.gpu_driver)
        assert lab_machine.kernel.read(control) == "on"


def test_power_control_knows_two_words(lab_machine: HostWithPair) -> None:
    assert refused(lab_machine, lab_machine.device("power/control"), "bogus") == errno.EINVAL


def test_d3cold_allowed_belongs_to_the_device_and_survives_every_move(lab_machine: HostWithPair) -> None:
    allowed = lab_machine.device("d3cold_allowed")
    before = lab_machine.kernel.read(allowed)
    for value, read in (("0", "0"), ("2", "1")):
        lab_machine.kernel.write(allowed, value)
        lab_machine.move(lab_machine.gpu, "vfio-pci")
        assert lab_machine.kernel.read(allowed) == read
        lab_machine.move(lab_machine.gpu, lab_machine.gpu_driver)
        assert lab_machine.kernel.read(allowed) == read
    lab_machine.kernel.write(allowed, before)


def test_a_bus_reset_is_refused_where_there_are_siblings_whatever_their_driver(lab_machine: HostWithPair) -> None:
    reset = lab_machine.device("reset")
    assert refused(lab_machine, reset, "1") == errno.ENOTTY
    lab_machine.unbind(lab_machine.companion)
    assert refused(lab_machine, reset, "1") == errno.ENOTTY
    assert refused(lab_machine, reset, "0") == errno.EINVAL
    assert refused(lab_machine, lab_machine.device("reset", lab_machine.companion), "1") == errno.ENOENT


def test_a_device_alone_on_its_bus_is_reset_and_answers(lab_machine: HostWithPair) -> None:
    (nvme,) = _with_methods(lab_machine, "flr bus")[-1:]
    lab_machine.kernel.write(lab_machine.device("reset", nvme), "1")
    assert lab_machine.kernel.config(nvme)[:4] != b"\xff\xff\xff\xff"


def test_only_methods_that_there_are_can_be_chosen(lab_machine: HostWithPair) -> None:
    (nvme,) = _with_methods(lab_machine, "flr bus")[-1:]
    path = lab_machine.device("reset_method", nvme)
    assert refused(lab_machine, path, "pm") == errno.EINVAL
    lab_machine.kernel.write(path, "bus")
    assert lab_machine.kernel.read(path) == "bus"
    lab_machine.kernel.write(path, "default")
    assert lab_machine.kernel.read(path) == "flr bus"


def _with_methods(machine: HostWithPair, methods: str) -> list[str]:
    found = []
    for address in machine.kernel.children(PCI_DEVICES):
        try:
            if machine.kernel.read(machine.device("reset_method", address)) == methods:
                found.append(address)
        except KernelRefused:
            continue
    return found


def test_the_configuration_space_begins_with_the_ids(lab_machine: HostWithPair) -> None:
    config = lab_machine.kernel.config(lab_machine.gpu)
    assert len(config) == 64
    assert f"0x{config[1]:02x}{config[0]:02x}" == lab_machine.kernel.read(lab_machine.device("vendor"))


def test_the_text_console_is_taken_off_and_put_back(lab_machine: HostWithPair) -> None:
    assert "frame buffer" in lab_machine.kernel.read("/sys/class/vtconsole/vtcon1/name")
    assert (lab_machine.kernel.read(CONSOLE), lab_machine.kernel.read(SYSTEM_CONSOLE)) == ("1", "0")
    lab_machine.kernel.write(CONSOLE, "x")  # simple_strtoul: no number is 0
    assert (lab_machine.kernel.read(CONSOLE), lab_machine.kernel.read(SYSTEM_CONSOLE)) == ("0", "1")
    lab_machine.kernel.write(CONSOLE, "1")
    assert (lab_machine.kernel.read(CONSOLE), lab_machine.kernel.read(SYSTEM_CONSOLE)) == ("1", "0")


def test_a_console_that_was_taken_off_can_be_put_back_after_the_display_came_back(lab_machine: HostWithPair) -> None:
    """Whether the kernel does so by itself depends on the number that the framebuffer gets."""
    display = _with_first_framebuffer(lab_machine)
    lab_machine.kernel.write(CONSOLE, "0")
    _there_and_back(lab_machine, display)
    lab_machine.kernel.write(CONSOLE, "1")
    assert lab_machine.kernel.read(CONSOLE) == "1"


def test_a_console_that_lost_its_framebuffer_takes_it_over_again(lab_machine: HostWithPair) -> None:
    display = _with_first_framebuffer(lab_machine)
    lab_machine.unbind(display)
    assert lab_machine.kernel.read(CONSOLE) == "0"
    lab_machine.kernel.write("/sys/bus/pci/drivers_probe", display)
    assert lab_machine.kernel.read(CONSOLE) == "1"


def test_class_devices_go_and_come_back_with_the_driver(lab_machine: HostWithPair) -> None:
    home = f"{PCI_DEVICES}/{lab_machine.gpu}"
    assert "graphics" in {each.subsystem for each in lab_machine.kernel.below(home)}
    lab_machine.unbind(lab_machine.gpu)
    assert "graphics" not in {each.subsystem for each in lab_machine.kernel.below(home)}
    lab_machine.kernel.write("/sys/bus/pci/drivers_probe", lab_machine.gpu)
    assert "graphics" in {each.subsystem for each in lab_machine.kernel.below(home)}


def _with_first_framebuffer(machine: HostWithPair) -> str:
    return machine.kernel.link("/sys/class/graphics/fb0").split("/")[-3]


def _there_and_back(machine: HostWithPair, display: str) -> None:
    driver = machine.driver_of(display)
    assert driver
    machine.unbind(display)
    machine.kernel.write("/sys/bus/pci/drivers_probe", display)
    assert machine.driver_of(display) == driver
