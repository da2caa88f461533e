"""Reads the settings around functions: power, consoles, NVIDIA's lock, services. May not write."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from vfioctl.binding.model.conditions import Reading
from vfioctl.binding.resources.framebuffer import PLATFORM_DRIVERS
from vfioctl.binding.resources.service import activity
from vfioctl.errors import DeviceInUse, KernelRefused
from vfioctl.inventory.model.functions import Function
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.lenient import names_in, text_of
from vfioctl.kernel.protocol import FIRMWARE_FRAMEBUFFERS, PCI_DEVICES, Reader, Unanswered, per_subject

IDLE_D3 = "/sys/module/vfio_pci/parameters/disable_idle_d3"


def read_settings(
    kernel: Reader, functions: Sequence[Function], units: Iterable[tuple[str, PciAddress]] = ()
) -> tuple[Reading, ...]:
    """Return the settings around the functions. `units`: services, each with a function that it holds. Raises Stuck."""
    by_address = {function.address: function for function in functions}
    readings: list[Reading] = []
    # in workers, which may be abandoned: reading unbindLock and vtconsoles takes locks of their drivers
    for subject, settings in kernel.survey(settings_of, by_address):
        if isinstance(settings, Unanswered):
            raise DeviceInUse(
                f"what goes with {subject} cannot be read: {settings.reason}",
                hint="a change of it, or of the text console, is still under way in the kernel",
            )
        address = PciAddress(subject)
        readings += (Reading(kind=k, name=n, address=address, value=v) for k, n, v in settings)
    readings += _persistence(functions)
    readings += (r for function in functions if function.boot_vga for r in _firmware(kernel, function.address))
    states = kernel.unit_states(sorted({unit for unit, _ in units}))
    readings += (
        Reading(kind="service", name=unit, address=address, value=activity(states[unit]))
        for unit, address in units
        if unit in states
    )
    return tuple({reading.key: reading for reading in readings}.values())


def idle_devices_sleep(kernel: Reader) -> bool | None:
    """Return whether vfio-pci lets idle devices sleep; None if it is not loaded."""
    text = readable(kernel, IDLE_D3)
    return None if text is None else text.strip().upper() != "Y"


def _firmware(kernel: Reader, address: PciAddress) -> Iterator[Reading]:
    """Yield the firmware's framebuffers, which belong to the boot display."""
    for driver in FIRMWARE_FRAMEBUFFERS:
        for name in names_in(kernel, f"{PLATFORM_DRIVERS}/{driver}"):
            if re.fullmatch(r"[a-z][a-z0-9-]{0,31}\.[0-9]{1,3}", name, re.ASCII):
                yield Reading(kind="framebuffer", name=name, address=address, value=driver)


def _persistence(functions: Iterable[Function]) -> Iterator[Reading]:
    for function in functions:
        if function.driver == "nvidia" and function.is_gpu and not function.is_vf:
            mode = function.nvml.persistence_mode if function.nvml else None
            value = None if mode is None else str(int(mode))
            yield Reading(kind="persistence", name=function.address, address=function.address, value=value)


VTCONSOLES = "/sys/class/vtconsole"
POWER, D3COLD, LOCK, CONSOLE = "power", "d3cold", "lock", "console"

Found = list[tuple[str, str, str | None]]
"""Kind, name and value."""


@per_subject
def settings_of(kernel: Reader, address: str) -> Found:
    """Return the settings in a function's own files."""
    home = f"{PCI_DEVICES}/{address}"
    lock = f"/proc/driver/nvidia/gpus/{address}/unbindLock"
    files = ((POWER, f"{home}/power/control"), (D3COLD, f"{home}/d3cold_allowed"))
    settings: Found = [(kind, path, readable(kernel, path)) for kind, path in files]
    if kernel.has(lock):
        settings.append((LOCK, lock, readable(kernel, lock)))
    if _carries_console(kernel, home):
        settings += ((CONSOLE, path, readable(kernel, path)) for path in _consoles(kernel))
    return [(kind, path, value) for kind, path, value in settings if _is_known(kind, value)]


def _is_known(kind: str, value: str | None) -> bool:
    """Return whether to use the value. An unreadable lock counts as open; other unreadable settings are left alone."""
    if value is None:
        return kind == LOCK
    return re.fullmatch(r"on|auto|[0-9]", value, re.ASCII) is not None


def _carries_console(kernel: Reader, home: str) -> bool:
    """Return whether the text console may use it: it is on the first framebuffer, unless fbcon=map says otherwise."""
    own = names_in(kernel, f"{home}/graphics")
    all_of_them = [name for name in names_in(kernel, "/sys/class/graphics") if re.fullmatch(r"fb[0-9]+", name)]
    first = min(all_of_them or own, key=lambda name: (len(name), name), default="")
    return bool(own) and (first in own or "fbcon=map" in text_of(kernel, "/proc/cmdline"))


def _consoles(kernel: Reader) -> Iterator[str]:
    for name in names_in(kernel, VTCONSOLES):
        if "frame buffer" in text_of(kernel, f"{VTCONSOLES}/{name}/name"):
            yield f"{VTCONSOLES}/{name}/bind"


def readable(kernel: Reader, path: str) -> str | None:
    """Return a file's text; None if it cannot be read."""
    try:
        return kernel.read(path)
    except KernelRefused:
        return None
