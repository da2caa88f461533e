"""Which devices a libvirt domain hands to its guest, read from its XML. May not do input or output."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vfioctl.inventory.model.values import PciAddress, Subject, any_number
from vfioctl.units import Uuid

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

_LONGEST_XML = 4 << 20


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
    elements = (element for tag in ("hostdev", "interface") for element in root.iterfind(f"./devices/{tag}"))
    return list(dict.fromkeys(name for element in elements for name in devices_of_one(element)))


def managed_devices_of(root: Element) -> list[str]:
    """Return the PCI addresses that libvirt binds to VFIO itself, and gives back: managed='yes'."""
    return [name for element in root.iterfind("./devices/*[@managed='yes']") for name in devices_of_one(element)]


def withheld_in(root: Element) -> list[str]:
    """Return the devices that libvirt takes from the host, and does not show to the guest: their `<address>` is of the
    type `unassigned` (libvirt's formatdomain, Device Addresses)."""
    kept = (
        element for element in root.iterfind("./devices/*") if element.find("./address[@type='unassigned']") is not None
    )
    return [name for element in kept for name in devices_of_one(element)]


def subject_of(name: str) -> Subject:
    """Return the device that such a name means. Raises BadSpec for what is neither."""
    return PciAddress(name) if ":" in name else Uuid(name)


def devices_of_one(device: Element) -> Iterator[str]:
    """Yield the same for one element of <devices>."""
    is_interface = device.tag == "interface"
    if not is_interface and (device.tag != "hostdev" or device.get("mode", "subsystem") != "subsystem"):
        return
    for source in device.iterfind("./source/address"):
        if device.get("type") == ("hostdev" if is_interface else "pci"):
            yield from _pci(source)
        elif not is_interface and (uuid := source.get("uuid")):
            yield uuid.lower()


def _pci(source: Element) -> Iterator[str]:
    parts = [any_number(source.get(name, "0")) for name in ("domain", "bus", "slot", "function")]
    known = [part for part in parts if part is not None]
    if source.get("type", "pci") == "pci" and len(known) == len(parts):
        domain, bus, slot, function = known
        yield f"{domain:04x}:{bus:02x}:{slot:02x}.{function:x}"
