"""Reads from a domain's XML where the host's devices are in the guest. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vfioctl.domain.model.layout import NO_TOPOLOGY, CurrentExpander, CurrentPort, GuestTopology, Slot

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from vfioctl.domain.document.reader import Domain
    from vfioctl.domain.document.values import PciController
    from vfioctl.domain.document.xml import Document

EXPANDER = "pcie-expander-bus"


def host_devices(devices: Element) -> Iterator[tuple[str, Element]]:
    """Yield the elements that give the guest a function or a mediated device of the host, each with its name."""
    from vfioctl.claims.model.passthrough_devices import devices_of_one

    for element in (*devices.iterfind("hostdev"), *devices.iterfind("interface")):
        yield from ((name, element) for name in devices_of_one(element))


def read_topology(document: Document) -> GuestTopology:
    """Return the PCI of an existing domain."""
    topology = document.root.find("devices")
    if topology is None or (
        topology.find(f"controller[@model='{EXPANDER}']") is None and not any(True for _ in host_devices(topology))
    ):
        return NO_TOPOLOGY
    from vfioctl.domain.document.reader import Domain

    return _Reader(Domain(document)).read(topology)


class _Reader:
    def __init__(self, domain: Domain) -> None:
        self._domain, self._by_index = domain, domain.controller_of_bus

    def read(self, devices: Element) -> GuestTopology:
        addresses = self._domain.address_by_device
        slots = {
            name: Slot(address.bus, address.slot, address.function, self._expander_of(address.bus))
            for name, element in host_devices(devices)
            if (address := addresses.get(id(element)))
        }
        behind = {id(element) for name, element in host_devices(devices) if name in slots}
        expanders = {
            index: self._expander(index, controller, behind)
            for index, controller in self._by_index.items()
            if controller.model == EXPANDER
        }
        return GuestTopology(slots, expanders)

    def _expander_of(self, bus: int) -> int | None:
        expander = self._domain.expander_of(bus)
        return expander.index if expander and expander.model == EXPANDER else None

    def _expander(self, index: int, controller: PciController, behind: set[int]) -> CurrentExpander:
        ports = {
            below: CurrentPort(port.address.slot, self._buses(below), self._only(below, behind))
            for below, port in self._by_index.items()
            if port.address and port.address.bus == index
        }
        return CurrentExpander(controller.bus_number, ports)

    def _buses(self, index: int) -> int:
        """Return how many buses there are behind a controller, with its own."""
        upper = {below: port.address.bus for below, port in self._by_index.items() if port.address}
        level, buses = {index}, {index}
        while level:
            level = {below for below, bus in upper.items() if bus in level}.difference(buses)
            buses |= level
        return len(buses)

    def _only(self, index: int, behind: set[int]) -> bool:
        on = [id(element) for element, address in self._domain.placed if address.bus == index]
        return bool(on) and behind.issuperset(on)
