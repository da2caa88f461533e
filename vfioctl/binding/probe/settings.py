"""Reads the settings around functions: power, consoles, NVIDIA's lock, services. May not write."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from vfioctl.binding.model.conditions import Reading
from vfioctl.binding.probe.readers import readable, settings_of
from vfioctl.binding.resources.released import PLATFORM_DRIVERS, activity
from vfioctl.errors import DeviceInUse
from vfioctl.inventory.model.functions import Function
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.host_paths import FIRMWARE_FRAMEBUFFERS
from vfioctl.kernel.lenient import names_in
from vfioctl.kernel.protocol import Reader, Unanswered

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
    named = ((unit, address) for unit, address in units if unit in states)
    readings += (Reading(kind="service", name=u, address=a, value=activity(states[u])) for u, a in named)
    return tuple({reading.key: reading for reading in readings}.values())


def idle_devices_sleep(kernel: Reader) -> bool | None:
    """Return whether vfio-pci lets idle devices sleep; None if it is not loaded."""
    text = readable(kernel, IDLE_D3)
    return None if text is None else text.strip().upper() != "Y"


def _firmware(kernel: Reader, address: PciAddress) -> Iterator[Reading]:
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
