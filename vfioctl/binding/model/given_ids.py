"""Ids that vfio-pci is given at boot, by its option ids=: where they are, and which functions they take. May not do
input or output. Source: drivers/vfio/pci/vfio_pci.c, vfio_pci_fill_ids; drivers/pci/pci.h, pci_match_one_device."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from vfioctl.inventory.model.functions import Function

COMMAND_LINE = "/proc/cmdline"
MODPROBE = ("/etc/modprobe.d", "/run/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d")
"""Where modprobe looks, those that take precedence first (modprobe.d(5))."""
_MODULE = ("vfio-pci", "vfio_pci")
_MOST = 256
"""Ids of one option that are looked at."""
_NUMBER = "(?:0x)?([0-9a-f]{1,8})"
_ID = re.compile(f"{_NUMBER}:{_NUMBER}{f'(?::{_NUMBER})?' * 4}", re.ASCII)
_ANY = 0xFFFFFFFF
"""PCI_ANY_ID."""


class GivenId(NamedTuple):
    """One id of the option."""

    text: str
    ids: tuple[str, str, str, str]
    """Of the vendor, the device, and their subsystem, as sysfs has them; empty for any."""
    class_code: int = 0
    mask: int = 0
    """The bits of the class that count."""

    @property
    def model(self) -> tuple[str, str] | None:
        """The ids of vendor and device; None if one of them may be any."""
        return self.ids[:2] if all(self.ids[:2]) else None

    def fits(self, function: Function) -> bool:
        """Return whether vfio-pci takes a function because of this id: it takes no bridge."""
        have = (function.vendor_id, function.device_id, function.subsystem_vendor_id, function.subsystem_device_id)
        if function.is_bridge or any(wanted not in ("", known) for wanted, known in zip(self.ids, have, strict=True)):
            return False
        return not self.mask or (int(function.class_code, 16) ^ self.class_code) & self.mask == 0


def ids_on_command_line(text: str) -> Iterator[str]:
    """Yield each list of ids that the kernel command line gives to vfio-pci."""
    for word in text.split():
        name, _, ids = word.replace('"', "").partition("=")
        if ids and name in (f"{module}.ids" for module in _MODULE):
            yield ids


def ids_in_modprobe(text: str) -> Iterator[str]:
    """Yield each list of ids that a file of modprobe.d gives to vfio-pci."""
    for line in text.replace("\\\n", " ").splitlines():
        command, module, *options = [*line.replace('"', "").split(), "", ""]
        if command == "options" and module in _MODULE:
            yield from (option.removeprefix("ids=") for option in options if option.startswith("ids="))


def ids_in(option: str) -> Iterator[GivenId]:
    """Yield the ids of an option, `VENDOR:DEVICE[:SUBVENDOR[:SUBDEVICE[:CLASS[:MASK]]]],...`, in hexadecimal digits;
    without those that the kernel drops."""
    for text in option.split(",", _MOST)[:_MOST]:
        if match := _ID.fullmatch(text.lower()):
            vendor, device, subvendor, subdevice = map(_as_in_sysfs, match.groups()[:4])
            class_code, mask = (int(digits or "0", 16) for digits in match.groups()[4:])
            yield GivenId(text, (vendor, device, subvendor, subdevice), class_code, mask)


def _as_in_sysfs(digits: str | None) -> str:
    return "" if digits is None or int(digits, 16) == _ANY else f"{int(digits, 16):04x}"
