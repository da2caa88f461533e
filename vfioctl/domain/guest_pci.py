"""Writes the guest's PCI into the XML: expander buses, root ports, and the host's devices behind them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from xml.etree.ElementTree import Element

from vfioctl.domain.layout.layout import hides_rom
from vfioctl.domain.model.layout import Device, Expander, Layout, Placed
from vfioctl.domain.tree import add, child, insert
from vfioctl.inventory.model.values import PciAddress


def add_pci(devices: Element, layout: Layout) -> None:
    """Add the controllers and the devices. A controller's index is the number of its bus in addresses."""
    if not layout.expanders:
        return
    _forget(devices, layout)
    root = next((each for each in devices.findall("controller[@model='pcie-root']")), None)
    if root is None:
        root = Element("controller", {"type": "pci", "index": "0", "model": "pcie-root"})
        insert(devices, root)
    if layout.hole:
        child(root, "pcihole64", {"unit": "KiB"}, str(layout.hole >> 10))
    indexes, aliases = _free_indexes(devices), {each.get("name", "") for each in devices.iterfind("*/alias")}
    for expander in layout.expanders:
        bus = 0
        if expander.bus_number is not None:
            bus = next(indexes)
            insert(devices, _expander(bus, expander))
        for slot, port in enumerate(expander.ports):
            index = next(indexes)
            insert(devices, _root_port(index, bus, slot))
            for placed in port.devices:
                alias = _free_alias(placed.device, aliases)
                insert(devices, _hostdev(placed, index, alias, hidden=hides_rom(placed.device)))


def _forget(devices: Element, layout: Layout) -> None:
    """Remove the layout's devices from where they were, with the ports and expander buses that are empty then."""
    placed = [each.device for expander in layout.expanders for port in expander.ports for each in port.devices]
    sources = [{name: int(value, 16) for name, value in _source(each).items()} for each in placed if _is_pci(each)]
    uuids = {str(each.subject) for each in placed if not _is_pci(each)}
    for hostdev in devices.findall("hostdev"):
        source = hostdev.find("source/address")
        if source is not None and (_numbers(source) in sources or source.get("uuid", "").lower() in uuids):
            devices.remove(hostdev)
    for model in ("pcie-root-port", "pcie-expander-bus"):
        expanders = {each.get("index") for each in devices.findall("controller[@model='pcie-expander-bus']")}
        for controller in devices.findall(f"controller[@model='{model}']"):
            address = controller.find("address")
            above = None if address is None else _bus(address)
            is_ours = model == "pcie-expander-bus" or above in expanders
            if is_ours and controller.get("index") not in set(map(_bus, devices.iterfind("*/address[@type='pci']"))):
                devices.remove(controller)


def _is_pci(device: Device) -> bool:
    return isinstance(device.subject, PciAddress)


def _numbers(address: Element) -> Mapping[str, int] | None:
    """Return the parts of a PCI address; None for what is none."""
    try:
        return {name: int(address.get(name, "0"), 0) for name in ("domain", "bus", "slot", "function")}
    except ValueError:
        return None


def _bus(address: Element) -> str:
    """Return the index of the controller that an address is below."""
    found = _numbers(address)
    return str(found["bus"]) if found else ""


def _free_indexes(devices: Element) -> Iterator[int]:
    used = {each.get("index") for each in devices.findall("controller[@type='pci']")}
    return (index for index in count(1) if str(index) not in used)


def _expander(index: int, expander: Expander) -> Element:
    made = Element("controller", {"type": "pci", "index": str(index), "model": "pcie-expander-bus"})
    target = add(made, "target", {"busNr": expander.bus_number})
    add(target, "node", text=str(expander.cell))
    return made


def _root_port(index: int, bus: int, slot: int) -> Element:
    """Return a root port. On the guest's own root libvirt chooses the slot."""
    made = Element("controller", {"type": "pci", "index": str(index), "model": "pcie-root-port"})
    if bus:
        add(made, "address", _guest_address(bus, slot, 0))
    return made


def _guest_address(bus: int, slot: int, function: int) -> Mapping[str, object]:
    return {
        "type": "pci",
        "domain": "0x0000",
        "bus": f"0x{bus:02x}",
        "slot": f"0x{slot:02x}",
        "function": f"0x{function:x}",
    }


def _free_alias(device: Device, used: set[str]) -> str:
    """Return the device's alias, with a higher number if the document has that one already."""
    kind = device.label.rstrip("0123456789")
    numbers = count(int(device.label.removeprefix(kind)))
    alias = next(name for number in numbers if (name := f"ua-{kind}{number}") not in used)
    used.add(alias)
    return alias


def _hostdev(placed: Placed, bus: int, alias: str, *, hidden: bool) -> Element:
    device = placed.device
    made = Element("hostdev", dict(_kind(device)))
    if isinstance(device.subject, PciAddress):
        add(made, "driver", {"name": "vfio"})
    add(add(made, "source"), "address", _source(device))
    add(made, "alias", {"name": alias})
    if hidden:
        add(made, "rom", {"bar": "off"})
    several = {"multifunction": "on"} if placed.multifunction else {}
    add(made, "address", {**_guest_address(bus, 0, placed.function), **several})
    return made


def _kind(device: Device) -> Iterator[tuple[str, str]]:
    yield "mode", "subsystem"
    if isinstance(device.subject, PciAddress):
        yield from (("type", "pci"), ("managed", "no"))
        return
    yield from (("type", "mdev"), ("model", "vfio-pci"))
    if device.mdev_display:
        yield from (("display", "on"), ("ramfb", "on"))


def _source(device: Device) -> Mapping[str, str]:
    if not isinstance(device.subject, PciAddress):
        return {"uuid": device.subject}
    domain, bus, rest = device.subject.split(":")
    slot, function = rest.split(".")
    return {"domain": f"0x{domain}", "bus": f"0x{bus}", "slot": f"0x{slot}", "function": f"0x{function}"}
