"""Lays out the guest's PCI: an expander bus for each root complex of the host, a root port for each card. Pure.

A PCI endpoint has no NUMA node of its own: the guest takes it from the root bus, so each node needs an expander bus.
GPUs below one root complex reach each other without crossing it, so each complex has one. Everything below an expander
bus must have a number between its own and that of the next one (QEMU, docs/pcie.txt, section 4), which libvirt does not
check. Numbers are given from the top down, and the rest is left to the guest's own root.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from vfioctl.domain.model.layout import Choice, Device, Expander, Placed, Port
from vfioctl.errors import BadSpec

BUSES, MOST_PORTS = 256, 32
_LOWEST = 32
"""The buses below this are for the guest's own root, with its disks and networks."""


def expanders(devices: Sequence[Device], cell_of: Mapping[int, int]) -> tuple[Expander, ...]:
    """Return the expander buses, in the order of their bus numbers; devices without a node are on the guest's root.

    `cell_of`: the guest's cell of each node of the host. Raises BadSpec if there are too many devices.
    """
    complexes: dict[tuple[str, int | None], dict[str, list[Device]]] = {}
    for device in devices:
        cell = cell_of.get(-1 if device.node is None else device.node)
        key = ("" if cell is None else device.complex, cell)
        complexes.setdefault(key, {}).setdefault(device.slot, []).append(device)
    found = []
    top = BUSES
    for (complex_, cell), slots in reversed(complexes.items()):
        for ports in reversed(list(_chunks([_port(each) for each in slots.values()]))):
            if cell is None:
                found.append(Expander(ports))
                continue
            top -= 1 + len(ports)
            found.append(Expander(ports, complex_, cell, top))
    if top < _LOWEST:
        raise BadSpec(f"{len(devices)} devices need more PCI buses than a guest has", hint="give it fewer devices")
    return tuple(reversed(found))


def _chunks(ports: Sequence[Port]) -> Iterator[tuple[Port, ...]]:
    for first in range(0, len(ports), MOST_PORTS):
        yield tuple(ports[first : first + MOST_PORTS])


def _port(devices: Sequence[Device]) -> Port:
    """Return the port of the functions of one card. They keep their function numbers, if one of them has number 0."""
    numbers = [int(device.subject[-1]) if device.slot != device.subject else 0 for device in devices]
    if 0 not in numbers:
        numbers = list(range(len(devices)))
    several = len(devices) > 1
    placed = (Placed(device, number, several and number == 0) for device, number in zip(devices, numbers, strict=True))
    return Port(tuple(sorted(placed, key=lambda each: each.function)))


def choices(found: Sequence[Expander]) -> Iterator[Choice]:
    """Yield why each expander bus is there."""
    for each in found:
        names = ", ".join(placed.device.label for port in each.ports for placed in port.devices)
        if each.bus_number is None:
            yield Choice("the guest's own PCI root", names, "no NUMA node is known for them")
            continue
        yield Choice(
            f"PCI expander bus {each.bus_number} in guest cell {each.cell}",
            names,
            f"below root complex {each.complex} of the host; the guest takes their NUMA node from the bus",
        )
