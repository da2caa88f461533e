"""Readers of settings that run in a worker. May not import models, which the worker would have to import too."""

from __future__ import annotations

import re

from vfioctl.errors import KernelRefused
from vfioctl.kernel.lenient import names_in, text_of
from vfioctl.kernel.protocol import PCI_DEVICES, Reader, per_subject

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
        for name in names_in(kernel, VTCONSOLES):
            if "frame buffer" in text_of(kernel, f"{VTCONSOLES}/{name}/name"):
                path = f"{VTCONSOLES}/{name}/bind"
                settings.append((CONSOLE, path, readable(kernel, path)))
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


def readable(kernel: Reader, path: str) -> str | None:
    """Return a file's text; None if it cannot be read."""
    try:
        return kernel.read(path)
    except KernelRefused:
        return None
