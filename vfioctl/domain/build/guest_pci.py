"""Writes the guest's PCI into the XML: expander buses, root ports, and the host's devices behind them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from xml.etree.ElementTree import Element

from vfioctl.domain.build.layout.layout import hides_rom
from vfioctl.domain.build.layout.pci import moved
from vfioctl.domain.document.guest_topology import EXPANDER, host_devices
from vfioctl.domain.document.tree import add, child, insert
from vfioctl.domain.document.values import address_of, size_of
from vfioctl.domain.model.layout import Device, Expander, Layout, Placed, Port
from vfioctl.inventory.model.values import PciAddress, any_number


def add_pci(devices: Element, layout: Layout) -> None:
    """Add controllers (index: the bus in addresses) and devices: one that is there keeps all but its address."""
    _clear_nodes(devices, len(layout.cells))
    if not layout.expanders:
        return
    _make_root(devices, layout.hole)
    existing = dict(host_devices(devices))
    aliases = {alias.get("name", "") for alias in devices.iterfind("*/alias")}
    for expander in layout.expanders:
        bus = _expander(devices, expander)
        for port in expander.ports:
            index = _port(devices, port, bus)
            for placed in port.devices:
                element = existing.get(placed.device.subject)
                if element is None:
                    element = _hostdev(placed.device, _free_alias(placed.device, aliases))
                    insert(devices, element)
                _place(element, placed, index)
    _remove_empty(devices, layout)


def _clear_nodes(devices: Element, cells: int) -> None:
    """Remove the cell of expander buses whose cell the guest no longer has: libvirt refuses such a document."""
    for target in devices.iterfind("controller[@type='pci']/target"):
        node = target.find("node")
        if node is not None and (any_number(node.text) or 0) >= cells:
            target.remove(node)


def _make_root(devices: Element, hole: int) -> None:
    root = devices.find("controller[@model='pcie-root']")
    if root is None:
        root = Element("controller", {"type": "pci", "index": "0", "model": "pcie-root"})
        insert(devices, root)
    if hole > (size_of(root.find("pcihole64")) or 0):
        child(root, "pcihole64", {"unit": "KiB"}, str(hole >> 10))


def _remove_empty(devices: Element, layout: Layout) -> None:
    """Remove the ports of expander buses from which the last device has gone, and the buses that are empty then."""
    left = {device.was for device in moved(layout.expanders) if device.was and device.was.expander is not None}
    for index in ({slot.bus for slot in left}, {slot.expander for slot in left}):
        used = {_bus(address) for address in devices.iterfind("*/address[@type='pci']")}
        for controller in devices.findall("controller[@type='pci']"):
            number = _index(controller)
            if number in index and number not in used:
                devices.remove(controller)


def _index(controller: Element) -> int | None:
    text = controller.get("index", "")
    return int(text) if text.isascii() and text.isdecimal() else None


def _bus(address: Element) -> int | None:
    parsed = address_of(address)
    return parsed.bus if parsed else None


def _free_index(devices: Element, above: int) -> int:
    """Return the lowest free index above that of a controller's bus: libvirt makes them in this order. Not free: one
    named only in addresses, for which libvirt makes a controller, and a port's chassis, which is its index by default.
    """
    used = {_index(controller) for controller in devices.findall("controller[@type='pci']")}
    used |= {_bus(address) for address in devices.iterfind("*/address[@type='pci']")}
    used |= {any_number(target.get("chassis")) for target in devices.iterfind("controller/target[@chassis]")}
    return next(index for index in count(above + 1) if index not in used)


def _expander(devices: Element, expander: Expander) -> int:
    """Write an expander bus; return its index, which is 0 for the guest's own root."""
    if expander.bus_number is None:
        return 0
    index = expander.controller
    if index is None:
        index = _free_index(devices, 0)
        element = Element("controller", {"type": "pci", "index": str(index), "model": EXPANDER})
        insert(devices, element)
    else:
        buses = devices.findall(f"controller[@model='{EXPANDER}']")
        element = next(bus for bus in buses if _index(bus) == index)
    target = child(element, "target", {"busNr": expander.bus_number})
    child(target, "node", text=str(expander.cell))
    return index


def _port(devices: Element, port: Port, bus: int) -> int:
    """Write a root port; return its index. On the guest's own root libvirt chooses the slot."""
    if port.controller is not None:
        return port.controller
    index = _free_index(devices, bus)
    controller = Element("controller", {"type": "pci", "index": str(index), "model": "pcie-root-port"})
    if bus:
        add(controller, "address", _guest_address(bus, port.slot, 0))
    insert(devices, controller)
    return index


def _guest_address(bus: int, slot: int, function: int) -> Mapping[str, object]:
    place = {"bus": f"0x{bus:02x}", "slot": f"0x{slot:02x}", "function": f"0x{function:x}"}
    return {"type": "pci", "domain": "0x0000", **place}


def _free_alias(device: Device, used: set[str]) -> str:
    kind = device.label.rstrip("0123456789")
    numbers = count(int(device.label.removeprefix(kind)))
    alias = next(name for number in numbers if (name := f"ua-{kind}{number}") not in used)
    used.add(alias)
    return alias


def _hostdev(device: Device, alias: str) -> Element:
    if isinstance(device.subject, PciAddress):
        hostdev = Element("hostdev", {"mode": "subsystem", "type": "pci", "managed": "yes" if device.managed else "no"})
        add(hostdev, "driver", {"name": "vfio"})
        domain, bus, rest = device.subject.split(":")
        slot, function = rest.split(".")
        source = {"domain": f"0x{domain}", "bus": f"0x{bus}", "slot": f"0x{slot}", "function": f"0x{function}"}
    else:
        display = {"display": "on", "ramfb": "on"} if device.mdev_display else {}
        hostdev = Element("hostdev", {"mode": "subsystem", "type": "mdev", "model": "vfio-pci", **display})
        source = {"uuid": device.subject}
    add(add(hostdev, "source"), "address", source)
    add(hostdev, "alias", {"name": alias})
    return hostdev


def _place(element: Element, placed: Placed, bus: int) -> None:
    """Write where a device is in the guest, and its ROM: a file, or that firmware does not see it, if none is there."""
    address = element.find("address")
    rom = element.find("rom")
    if rom is None and (hides_rom(placed.device) or placed.device.rom):
        rom = Element("rom", {} if placed.device.rom else {"bar": "off"})
        element.insert(len(element) if address is None else list(element).index(address), rom)
    if rom is not None and placed.device.rom:
        rom.attrib = {"file": placed.device.rom}
    several = {"multifunction": "on"} if placed.multifunction else {}
    if placed.stays and address is not None:
        address.attrib.update(several)
        return
    if address is not None:
        element.remove(address)
    add(element, "address", {**_guest_address(bus, placed.slot, placed.function), **several})
