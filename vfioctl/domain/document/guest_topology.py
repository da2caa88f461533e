"""Reads from a domain's XML where the host's devices are in the guest. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from vfioctl.domain.model.layout import NO_TOPOLOGY, CurrentExpander, CurrentPort, GuestTopology, Slot

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from vfioctl.domain.document.reader import Domain, PciController
    from vfioctl.domain.document.values import GuestAddress
    from vfioctl.domain.document.xml import Document

EXPANDER = "pcie-expander-bus"
_LEVELS = 32
"""More than a guest can have: a document with cycles has no end."""


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
        self._domain = domain
        self._by_index = {
            controller.index: controller for controller in domain.controllers if controller.index is not None
        }

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
            if _is_expander(controller)
        }
        return GuestTopology(slots, expanders)

    def _expander_of(self, bus: int) -> int | None:
        for _ in range(_LEVELS):
            controller = self._by_index.get(bus)
            if controller is None or _is_expander(controller):
                return bus if controller else None
            if controller.address is None:
                return None
            bus = controller.address.bus
        return None

    def _expander(self, index: int, controller: PciController, behind: set[int]) -> CurrentExpander:
        target = controller.element.find("target")
        text = "" if target is None else target.get("busNr", "")
        ports = {
            controller.index: CurrentPort(
                controller.address.slot, self._buses(controller.index), self._only(controller.index, behind)
            )
            for controller in self._domain.controllers
            if controller.index is not None and controller.address and controller.address.bus == index
        }
        return CurrentExpander(int(text) if text.isascii() and text.isdecimal() and len(text) < 4 else None, ports)

    def _buses(self, index: int) -> int:
        """Return how many buses there are behind a controller, with its own."""
        level, buses = {index}, {index}
        while level:
            level = {each for each, where in self._upper.items() if where.bus in level}.difference(buses)
            buses |= level
        return len(buses)

    @property
    def _upper(self) -> Mapping[int, GuestAddress]:
        return {index: controller.address for index, controller in self._by_index.items() if controller.address}

    def _only(self, index: int, behind: set[int]) -> bool:
        on = [id(element) for element, address in self._domain.placed if address.bus == index]
        return bool(on) and behind.issuperset(on)


def _is_expander(controller: PciController) -> bool:
    return controller.model == EXPANDER
