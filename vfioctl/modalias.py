"""Which modules say that they drive a device: `modules.alias`, matched as modprobe does.

Pure, and imports nothing of vfioctl, so that the probe and the simulated kernel share it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import translate
from functools import cached_property
from typing import NamedTuple

NATIVE, VFIO = "pci", "vfio_pci"
_VENDOR = re.compile(r"pci:v(?:0000)?([0-9A-F]{4})")


class Alias(NamedTuple):
    """One line: `alias pci:v000010DEd*sv*sd*bc03sc02i00* nvidia`."""

    bus: str
    pattern: str
    module: str


class Aliases:
    """The lines of modules.alias that can concern devices of the given modaliases."""

    def __init__(self, text: str, modaliases: Iterable[str]) -> None:
        vendors = {match[1] for modalias in modaliases if (match := _VENDOR.match(modalias))}
        # Text between the prefix and the vendor is either a wildcard or the vendor: one pass finds both.
        line = re.compile(rf"^alias (pci|vfio_pci):(v(?:\*|0000(?:{'|'.join(vendors) or 'x'}))\S*) (\S+)$", re.M)
        self.lines: Sequence[Alias] = tuple(Alias(*found) for found in line.findall(text))

    @cached_property
    def _compiled(self) -> Sequence[tuple[Alias, re.Pattern[str]]]:
        return tuple((alias, re.compile(translate(alias.pattern))) for alias in self.lines)

    def matching(self, modalias: str, bus: str = NATIVE) -> tuple[Alias, ...]:
        """The lines for a device, the most exact first; the order of the file decides among equals."""
        ids = modalias.partition(":")[2]
        found = [alias for alias, pattern in self._compiled if alias.bus == bus and pattern.match(ids)]
        return tuple(sorted(found, key=lambda alias: alias.pattern.count("*")))

    def modules(self, modalias: str, bus: str = NATIVE) -> tuple[str, ...]:
        """The modules for a device, each once, in that order."""
        return tuple(dict.fromkeys(alias.module for alias in self.matching(modalias, bus)))
