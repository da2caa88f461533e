"""The settings that go with some functions, as they are now: power, consoles, NVIDIA's lock, services. Reads only."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from vfioctl.binding.probe.readers import PLATFORM_DRIVERS, AgainReader, readable, running, settings_of
from vfioctl.core.setting import Reading, Setting, SettingKind
from vfioctl.errors import DeviceInUse
from vfioctl.inventory.model.functions import Function
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.lenient import names_in
from vfioctl.kernel.protocol import FIRMWARE_FRAMEBUFFERS, Reader, Unanswered
from vfioctl.vgpu.probe.again import NEVER_BLOCKS, vgpu_again

IDLE_D3 = "/sys/module/vfio_pci/parameters/disable_idle_d3"


def read_settings(
    kernel: Reader, functions: Sequence[Function], units: Iterable[tuple[str, PciAddress]] = ()
) -> tuple[Reading, ...]:
    """What there is to set around those functions; `units` are services, each with a function that it holds."""
    by_address = {function.address: function for function in functions}
    readings: list[Reading] = []
    # in workers that can be left behind: unbindLock and the vtconsoles are read under locks of their drivers
    for subject, found in kernel.survey(settings_of, by_address):
        if isinstance(found, Unanswered):
            raise DeviceInUse(
                f"what goes with {subject} cannot be read: {found.reason}",
                hint="a change of it, or of the text console, is still under way in the kernel",
            )
        address = PciAddress(subject)
        readings += (Reading(kind=SettingKind(k), name=n, address=address, value=v) for k, n, v in found)
    readings += _persistence(functions)
    readings += (r for function in functions if function.boot_vga for r in _firmware(kernel, function.address))
    states = kernel.unit_states(sorted({unit for unit, _ in units}))
    readings += (
        Reading(kind=SettingKind.SERVICE, name=unit, address=address, value=running(states[unit]))
        for unit, address in units
        if unit in states
    )
    return tuple({reading.key: reading for reading in readings}.values())


def read_again(kernel: Reader, settings: Iterable[Setting]) -> Mapping[tuple[SettingKind, str], str | None]:
    """The values of settings now; None for those that cannot be read, or whose file has gone."""
    found: dict[tuple[SettingKind, str], str | None] = {}
    asked: dict[str, Setting] = {}
    for number, setting in enumerate(settings):
        if setting.kind in NEVER_BLOCKS:
            found[setting.key] = vgpu_again(kernel, setting)
        else:
            asked[str(number)] = setting
    plain = {number: (str(s.kind), s.name, s.before or s.after) for number, s in asked.items()}
    if asked:
        for subject, value in kernel.survey(AgainReader, asked, args=(plain,)):
            found[asked[subject].key] = None if isinstance(value, Unanswered) else value
    return found


def idle_devices_sleep(kernel: Reader) -> bool | None:
    """Whether vfio-pci puts a device to sleep that nobody uses; None while it is not loaded."""
    text = readable(kernel, IDLE_D3)
    return None if text is None else text.strip().upper() != "Y"


def _firmware(kernel: Reader, address: PciAddress) -> Iterator[Reading]:
    """The framebuffers that the firmware left: they are the boot display's."""
    for driver in FIRMWARE_FRAMEBUFFERS:
        for name in names_in(kernel, f"{PLATFORM_DRIVERS}/{driver}"):
            if re.fullmatch(r"[a-z][a-z0-9-]{0,31}\.[0-9]{1,3}", name, re.ASCII):
                yield Reading(kind=SettingKind.FRAMEBUFFER, name=name, address=address, value=driver)


def _persistence(functions: Iterable[Function]) -> Iterator[Reading]:
    for function in functions:
        if function.driver == "nvidia" and function.is_gpu and not function.is_vf:
            mode = function.nvml.persistence_mode if function.nvml else None
            value = None if mode is None else str(int(mode))
            yield Reading(kind=SettingKind.PERSISTENCE, name=function.address, address=function.address, value=value)
