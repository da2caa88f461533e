"""The settings that go with some functions, as they are now: power, consoles, NVIDIA's lock, services. Reads only."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from vfioctl.core.setting import VGPU_KINDS, Reading, Setting, SettingKind
from vfioctl.errors import DeviceInUse, KernelRefused
from vfioctl.inventory.model.functions import Function
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.lenient import names_in, text_of
from vfioctl.kernel.protocol import FIRMWARE_FRAMEBUFFERS, PCI_DEVICES, Reader, Unanswered
from vfioctl.vgpu.probe.again import NEVER_BLOCKS, vgpu_again

VTCONSOLES = "/sys/class/vtconsole"
PLATFORM_DEVICES = "/sys/bus/platform/devices"
PLATFORM_DRIVERS = "/sys/bus/platform/drivers"
IDLE_D3 = "/sys/module/vfio_pci/parameters/disable_idle_d3"

_Found = list[tuple[str, str, str | None]]


def read_settings(
    kernel: Reader, functions: Sequence[Function], units: Iterable[tuple[str, PciAddress]] = ()
) -> tuple[Reading, ...]:
    """What there is to set around those functions; `units` are services, each with a function that it holds."""
    by_address = {function.address: function for function in functions}
    readings: list[Reading] = []
    # in children that can be left behind: unbindLock and the vtconsoles are read under locks of their drivers
    for subject, found in kernel.survey(partial(_of_function, kernel), by_address):
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
        Reading(kind=SettingKind.SERVICE, name=unit, address=address, value=_service(states[unit]))
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
    if asked:
        for subject, value in kernel.survey(lambda number: _again(kernel, asked[number]), asked):
            found[asked[subject].key] = None if isinstance(value, Unanswered) else value
    return found


def idle_devices_sleep(kernel: Reader) -> bool | None:
    """Whether vfio-pci puts a device to sleep that nobody uses; None while it is not loaded."""
    text = _text(kernel, IDLE_D3)
    return None if text is None else text.strip().upper() != "Y"


def _of_function(kernel: Reader, address: str) -> _Found:
    home = f"{PCI_DEVICES}/{address}"
    lock = f"/proc/driver/nvidia/gpus/{address}/unbindLock"
    files = ((SettingKind.POWER, f"{home}/power/control"), (SettingKind.D3COLD, f"{home}/d3cold_allowed"))
    found: _Found = [(str(kind), path, _text(kernel, path)) for kind, path in files]
    if kernel.has(lock):
        found.append((str(SettingKind.LOCK), lock, _text(kernel, lock)))
    if _carries_console(kernel, home):
        found += ((str(SettingKind.CONSOLE), path, _text(kernel, path)) for path in _consoles(kernel))
    return [(kind, path, value) for kind, path, value in found if _is_known(kind, value)]


def _is_known(kind: str, value: str | None) -> bool:
    """A lock that cannot be read is counted as open; anything else is left alone, as is what no kernel says."""
    if value is None:
        return kind == SettingKind.LOCK
    return re.fullmatch(r"on|auto|[0-9]", value, re.ASCII) is not None


def _carries_console(kernel: Reader, home: str) -> bool:
    """Whether the text console may be drawn on it: it stands on the first framebuffer, unless fbcon=map says else."""
    own = names_in(kernel, f"{home}/graphics")
    all_of_them = [name for name in names_in(kernel, "/sys/class/graphics") if re.fullmatch(r"fb[0-9]+", name)]
    first = min(all_of_them or own, key=lambda name: (len(name), name), default="")
    return bool(own) and (first in own or "fbcon=map" in text_of(kernel, "/proc/cmdline"))


def _consoles(kernel: Reader) -> Iterator[str]:
    for name in names_in(kernel, VTCONSOLES):
        if "frame buffer" in text_of(kernel, f"{VTCONSOLES}/{name}/name"):
            yield f"{VTCONSOLES}/{name}/bind"


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


def _service(state: str) -> str:
    """systemd has many words; one that failed as it was stopped does not run either."""
    return "active" if state in ("active", "activating", "reloading") else "inactive"


def _again(kernel: Reader, setting: Setting) -> str | None:
    kind, name = setting.kind, setting.name
    if kind == SettingKind.SERVICE:
        state = kernel.unit_states([name]).get(name)
        return None if state is None else _service(state)
    if kind == SettingKind.FRAMEBUFFER:
        driver = setting.before or setting.after
        if kernel.has(PLATFORM_DEVICES) and not kernel.has(f"{PLATFORM_DEVICES}/{name}"):
            return None  # vfio-pci takes it off the machine altogether (aperture_remove_conflicting_pci_devices)
        bound = any(kernel.has(f"{PLATFORM_DRIVERS}/{each}/{name}") for each in (driver, *FIRMWARE_FRAMEBUFFERS))
        return driver if bound else ""
    if kind in VGPU_KINDS:
        return vgpu_again(kernel, setting)
    return None if kind == SettingKind.PERSISTENCE else _text(kernel, name)


def _text(kernel: Reader, path: str) -> str | None:
    try:
        return kernel.read(path)
    except KernelRefused:
        return None
