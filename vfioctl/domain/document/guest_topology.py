"""Reads from a domain's XML where the host's devices are in the guest. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from vfioctl.domain.model.layout import NO_TOPOLOGY, CurrentExpander, CurrentPort, GuestTopology, Slot

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from vfioctl.domain.document.reader import Domain
    from vfioctl.domain.document.xml import Document

EXPANDER = "pcie-expander-bus"


def host_devices(devices: Element) -> Iterator[tuple[str, Element]]:
    """Yield the elements that give the guest a function or a mediated device of the host, each with its name."""
    from vfioctl.claims.model.passthrough_devices import devices_of_one

    for element in (*devices.iterfind("hostdev"), *devices.iterfind("interface")):
        yield from ((name, element) for name in devices_of_one(element))


def read_topology(document: Document) -> GuestTopology:
    """Return the PCI of an existing domain."""
    devices = document.root.find("devices")
    if devices is None or (
        devices.find(f"controller[@model='{EXPANDER}']") is None and not any(True for _ in host_devices(devices))
    ):
        return NO_TOPOLOGY
    from vfioctl.domain.document.reader import Domain

    domain = Domain(document)
    slots, behind = dict[str, Slot](), set[int]()
    for name, element in host_devices(devices):
        if address := domain.address_by_device.get(id(element)):
            behind.add(id(element))
            above = domain.expander_of(address.bus)
            expander = above.index if above and above.model == EXPANDER else None
            slots[name] = Slot(address.bus, address.slot, address.function, expander)
    expanders = {
        index: CurrentExpander(controller.bus_number, _ports(domain, index, behind))
        for index, controller in domain.controller_of_bus.items()
        if controller.model == EXPANDER
    }
    return GuestTopology(slots, expanders)


def _ports(domain: Domain, expander: int, behind: set[int]) -> Mapping[int, CurrentPort]:
    """Return the controllers on an expander bus. `behind`: by `id` of its element, each device of the host."""
    placed = {index: port.address for index, port in domain.controller_of_bus.items() if port.address}
    bus_of = {index: address.bus for index, address in placed.items()}
    ports = {}
    for index, address in placed.items():
        if address.bus == expander:
            on = {id(element) for element, place in domain.placed if place.bus == index}
            ports[index] = CurrentPort(address.slot, _buses(index, bus_of), bool(on) and on <= behind)
    return ports


def _buses(index: int, bus_of: Mapping[int, int]) -> int:
    level, buses = {index}, {index}
    while level:
        level = {below for below, bus in bus_of.items() if bus in level} - buses
        buses |= level
    return len(buses)
