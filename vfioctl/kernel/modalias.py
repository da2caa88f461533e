"""Finds the modules that claim to drive a device: `modules.alias`, matched as modprobe does. Pure, and imports nothing
of vfioctl, so that the probe and the simulated kernel share it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

NATIVE, VFIO = "pci", "vfio_pci"
# Digits and wildcards only: with \S+, a hostile line of many `sv` and `sd` would backtrack for very long.
_LINE = re.compile(r"alias (pci|vfio_pci):v{0}d{0}sv{0}sd{0}bc{0}sc{0}i{0} (\S+)".format("([0-9A-F*?]+)"))
# Kernels before 4.3 print the interface in lower case (format_modalias, drivers/pci/pci-sysfs.c).
_IDS = re.compile(r"pci:v{0}d{0}sv{0}sd{0}bc{1}sc{1}i{2}".format("([0-9A-F]{8})", "([0-9A-F]{2})", "([0-9A-Fa-f]{2})"))
_HEX = re.compile(r"0x([0-9A-Fa-f]{1,6})")

ID_FILES = ("vendor", "device", "subsystem_vendor", "subsystem_device", "class")
"""The files of a function that have its ids one by one."""


class Alias(NamedTuple):
    """One parsed line: `alias pci:v000010DEd*sv*sd*bc03sc02i00* nvidia`."""

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
        pairs = zip(self[1:8], ids, strict=True)
        return all(pattern in ("*", value) or fnmatchcase(value, pattern) for pattern, value in pairs)


class Aliases:
    """modules.alias. Parses only the lines of the devices that are looked up."""

    def __init__(self, text: str) -> None:
        self._text = f"\n{text}"
        self._by_vendor: dict[tuple[str, str], dict[str, list[str]]] = {}

    def _lines(self, bus: str, vendor: str) -> dict[str, list[str]]:
        """The lines of one vendor (or `*`), by device: thousands of lines name a vendor, few name one device. Split at
        the lines' common beginning: with 40,000, the regular expression would take most of the time."""
        if (bus, vendor) not in self._by_vendor:
            by_device: dict[str, list[str]] = {}
            start = f"alias {bus}:v{vendor}d"
            for rest in self._text.split(f"\n{start}")[1:]:
                line = rest.partition("\n")[0]
                by_device.setdefault(line.partition("sv")[0], []).append(start + line)
            self._by_vendor[bus, vendor] = by_device
        return self._by_vendor[bus, vendor]

    def _near(self, bus: str, ids: tuple[str, ...]) -> Iterator[Alias]:
        """The lines that name the vendor and the device, or `*` in their place."""
        for vendor in (ids[0], "*"):
            lines = self._lines(bus, vendor)
            for device in (ids[1], "*"):
                matches = (_LINE.fullmatch(line) for line in lines.get(device, ()))
                yield from (Alias(*match.groups()) for match in matches if match)

    def matching(self, modalias: str, bus: str = NATIVE) -> tuple[Alias, ...]:
        """The lines for a device, the most exact first; lines that are equally exact stay in the order of the file."""
        ids = ids_of(modalias)
        if ids is None:
            return ()
        matching = [alias for alias in self._near(bus, ids) if alias.fits(ids)]
        return tuple(sorted(matching, key=lambda alias: alias.wildcards))

    def names(self, module: str) -> bool:
        """Whether a line names the module: its drivers then take only devices that match such a line."""
        line = rf"^alias (?:{NATIVE}|{VFIO}):\S+ {re.escape(module)}$"
        return re.search(line, self._text, re.MULTILINE) is not None

    def modules(self, modalias: str, bus: str = NATIVE) -> tuple[str, ...]:
        """The modules for a device, each once, in the order of `matching`."""
        return tuple(dict.fromkeys(alias.module for alias in self.matching(modalias, bus)))


def ids_of(modalias: str) -> tuple[str, ...] | None:
    """Vendor, device, both of the subsystem, class, subclass, interface; None if it is not a PCI modalias."""
    match = _IDS.fullmatch(modalias)
    return tuple(group.upper() for group in match.groups()) if match else None


def ids_in(texts: Mapping[str, str]) -> tuple[str, ...] | None:
    """The ids of a function with these files: of its modalias, or of ID_FILES if the modalias does not parse. Ids whose
    file is missing are 0; None if the class is missing too."""
    if ids := ids_of(texts.get("modalias", "")):
        return ids
    files = (_HEX.fullmatch(texts.get(name, "")) for name in ID_FILES)
    vendor, device, subvendor, subdevice, kind = ((match[1].upper() if match else "") for match in files)
    if not kind:
        return None
    kind = kind.zfill(6)
    return (*(number.zfill(8) for number in (vendor, device, subvendor, subdevice)), kind[:2], kind[2:4], kind[4:])


def modalias_of(ids: tuple[str, ...]) -> str:
    """The modalias with these ids."""
    return "pci:v{}d{}sv{}sd{}bc{}sc{}i{}".format(*ids)
