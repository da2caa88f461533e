"""What a worker reads of settings. Imports no model, for a worker would have to import it too: kinds are plain words,
those of `SettingKind`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from vfioctl.errors import KernelRefused
from vfioctl.kernel.lenient import names_in, text_of
from vfioctl.kernel.protocol import FIRMWARE_FRAMEBUFFERS, PCI_DEVICES, FileReader, Reader, per_subject

VTCONSOLES = "/sys/class/vtconsole"
PLATFORM_DEVICES = "/sys/bus/platform/devices"
PLATFORM_DRIVERS = "/sys/bus/platform/drivers"
POWER, D3COLD, LOCK, CONSOLE = "power", "d3cold", "lock", "console"
SERVICE, FRAMEBUFFER, PERSISTENCE = "service", "framebuffer", "persistence"
VGPU_TYPE, PARAMETER, PROFILE = "vGPU type", "parameter", "profile"

Found = list[tuple[str, str, str | None]]
"""Kind, name and value."""


@per_subject
def settings_of(kernel: FileReader, address: str) -> Found:
    """What there is to set around a function, but for what no file of its own tells."""
    home = f"{PCI_DEVICES}/{address}"
    lock = f"/proc/driver/nvidia/gpus/{address}/unbindLock"
    files = ((POWER, f"{home}/power/control"), (D3COLD, f"{home}/d3cold_allowed"))
    found: Found = [(kind, path, readable(kernel, path)) for kind, path in files]
    if kernel.has(lock):
        found.append((LOCK, lock, readable(kernel, lock)))
    if _carries_console(kernel, home):
        found += ((CONSOLE, path, readable(kernel, path)) for path in _consoles(kernel))
    return [(kind, path, value) for kind, path, value in found if _is_known(kind, value)]


def _is_known(kind: str, value: str | None) -> bool:
    """A lock that cannot be read is counted as open; anything else is left alone, as is what no kernel says."""
    if value is None:
        return kind == LOCK
    return re.fullmatch(r"on|auto|[0-9]", value, re.ASCII) is not None


def _carries_console(kernel: FileReader, home: str) -> bool:
    """Whether the text console may be drawn on it: it stands on the first framebuffer, unless fbcon=map says else."""
    own = names_in(kernel, f"{home}/graphics")
    all_of_them = [name for name in names_in(kernel, "/sys/class/graphics") if re.fullmatch(r"fb[0-9]+", name)]
    first = min(all_of_them or own, key=lambda name: (len(name), name), default="")
    return bool(own) and (first in own or "fbcon=map" in text_of(kernel, "/proc/cmdline"))


def _consoles(kernel: FileReader) -> Iterator[str]:
    for name in names_in(kernel, VTCONSOLES):
        if "frame buffer" in text_of(kernel, f"{VTCONSOLES}/{name}/name"):
            yield f"{VTCONSOLES}/{name}/bind"


class AgainReader:
    """Reads one setting after the other again. `settings`: by number, kind, name and a framebuffer's driver."""

    def __init__(self, kernel: Reader, settings: Mapping[str, tuple[str, str, str]]) -> None:
        self._kernel, self._settings = kernel, settings

    def __call__(self, number: str) -> str | None:
        """The value; None where it cannot be read, or its file has gone."""
        kind, name, driver = self._settings[number]
        if kind == SERVICE:
            state = self._kernel.unit_states([name]).get(name)
            return None if state is None else running(state)
        if kind == FRAMEBUFFER:
            return self._framebuffer(name, driver)
        if kind in (VGPU_TYPE, PARAMETER, PROFILE):
            return self._of_vgpu(kind, name)
        return None if kind == PERSISTENCE else readable(self._kernel, name)

    def _framebuffer(self, name: str, driver: str) -> str | None:
        has = self._kernel.has
        if has(PLATFORM_DEVICES) and not has(f"{PLATFORM_DEVICES}/{name}"):
            return None  # vfio-pci takes it off the machine altogether (aperture_remove_conflicting_pci_devices)
        bound = any(has(f"{PLATFORM_DRIVERS}/{each}/{name}") for each in (driver, *FIRMWARE_FRAMEBUFFERS))
        return driver if bound else ""

    def _of_vgpu(self, kind: str, name: str) -> str | None:
        text = readable(self._kernel, name)
        if text is not None and kind == PROFILE and (chosen := re.search(r"\[(\w+)\]", text)):
            return chosen[1]  # `low [normal] high`
        return None if text is None else text.strip()


def running(state: str) -> str:
    """systemd has many words; one that failed as it was stopped does not run either."""
    return "active" if state in ("active", "activating", "reloading") else "inactive"


def readable(kernel: FileReader, path: str) -> str | None:
    """A file's text; None where it cannot be read."""
    try:
        return kernel.read(path)
    except KernelRefused:
        return None
