"""Which modules say that they drive a device: `modules.alias`, matched as modprobe does.

Pure, and imports nothing of vfioctl, so that the probe and the simulated kernel share it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import NamedTuple

NATIVE, VFIO = "pci", "vfio_pci"
_IDS = re.compile(r"pci:v(.{8})d(.{8})sv(.{8})sd(.{8})bc(..)sc(..)i(..)")


class Alias(NamedTuple):
    """One line: `alias pci:v000010DEd*sv*sd*bc03sc02i00* nvidia`, taken apart."""

    bus: str
    vendor: str
    device: str
    subvendor: str
    subdevice: str
    base: str
    sub: str
    interface: str
    module: str

    @property
    def line(self) -> str:
        ids = "v{1}d{2}sv{3}sd{4}bc{5}sc{6}i{7}".format(*self)
        return f"alias {self.bus}:{ids} {self.module}"

    @property
    def wildcards(self) -> int:
        return sum(field.count("*") for field in self[1:8])

    def fits(self, ids: tuple[str, ...]) -> bool:
        return all(
            pattern in ("*", value) or fnmatchcase(value, pattern)
            for pattern, value in zip(self[1:8], ids, strict=True)
        )


class Aliases:
    """The lines of modules.alias that can concern devices of the given modaliases."""

    def __init__(self, text: str, modaliases: Iterable[str]) -> None:
        vendors = {ids[0] for modalias in modaliases if (ids := _ids(modalias))}
        line = re.compile(
            rf"^alias (pci|vfio_pci):v(\*|{'|'.join(sorted(vendors)) or 'none'})d(\S+?)sv(\S+?)sd(\S+?)"
            r"bc(\S+?)sc(\S+?)i(\S+) (\S+)$",
            re.M,
        )
        self.lines = tuple(Alias(*found) for found in line.findall(text))
        # Thousands of lines name a device; only those that name this one, or none, are looked at.
        self._by_device: dict[tuple[str, str], list[Alias]] = {}
        for alias in self.lines:
            self._by_device.setdefault((alias.vendor, alias.device), []).append(alias)

    def matching(self, modalias: str, bus: str = NATIVE) -> tuple[Alias, ...]:
        """The lines for a device, the most exact first; the order of the file decides among equals."""
        ids = _ids(modalias)
        if ids is None:
            return ()
        keys = ((vendor, device) for vendor in (ids[0], "*") for device in (ids[1], "*"))
        near = [alias for key in keys for alias in self._by_device.get(key, ())]
        found = [alias for alias in near if alias.bus == bus and alias.fits(ids)]
        return tuple(sorted(found, key=lambda alias: alias.wildcards))

    def modules(self, modalias: str, bus: str = NATIVE) -> tuple[str, ...]:
        """The modules for a device, each once, in that order."""
        return tuple(dict.fromkeys(alias.module for alias in self.matching(modalias, bus)))


def _ids(modalias: str) -> tuple[str, ...] | None:
    match = _IDS.match(modalias)
    return match.groups() if match else None
