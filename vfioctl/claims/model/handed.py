"""Which devices a libvirt domain hands to its guest, read from its XML. May not do input or output."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

_LONGEST_XML = 4 << 20
_HEX = re.compile(r"(?:0x)?([0-9a-fA-F]{1,8})", re.ASCII)


def devices_in(xml: str) -> list[str]:
    """Return the PCI addresses and mediated devices that a domain's XML hands to its guest."""
    import xml.etree.ElementTree as ET

    if len(xml) > _LONGEST_XML or "<!DOCTYPE" in xml:
        return []
    try:
        root = ET.fromstring(xml)  # noqa: S314 - libvirt wrote it, without a DTD
    except ET.ParseError:
        return []
    return devices_of(root)


def devices_of(root: Element) -> list[str]:
    """Return the same for a document that has been read."""
    return list(dict.fromkeys(_named(root)))


def managed_devices_of(root: Element) -> list[str]:
    """Return the PCI addresses that libvirt binds to VFIO itself, and gives back: managed='yes'."""
    managed = [each for each in root.iterfind("./devices/*[@managed='yes']") if each.tag in ("hostdev", "interface")]
    return [name for each in managed for source in each.iterfind("./source/address") for name in _pci(source)]


def _named(root: Element) -> Iterator[str]:
    for source in root.iterfind("./devices/hostdev[@mode='subsystem']/source/address"):
        if uuid := source.get("uuid"):
            yield uuid.lower()
        else:
            yield from _pci(source)
    for source in root.iterfind("./devices/interface[@type='hostdev']/source/address"):
        yield from _pci(source)


def _pci(source: Element) -> Iterator[str]:
    given = {"domain": "0", "function": "0", **source.attrib}
    parts = [_HEX.fullmatch(given.get(name, "")) for name in ("domain", "bus", "slot", "function")]
    if all(parts):
        domain, bus, slot, function = (int(part[1], 16) for part in parts if part)
        yield f"{domain:04x}:{bus:02x}:{slot:02x}.{function:x}"
