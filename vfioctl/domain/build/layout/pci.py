"""Lays out the guest's PCI: an expander bus for each root complex of the host, a root port for each card. Pure.
A PCI endpoint has no NUMA node of its own: the guest takes it from the root bus, so each node needs an expander bus. A
guest of one node has none, because Windows takes a GPU that moves for a new device; NCCL's topology needs one, to name
its number. GPUs below one root complex reach each other without crossing it, so each complex has one. Everything below
an expander bus must have a number between its own and that of the next one (QEMU, docs/pcie.txt, section 4), which
libvirt does not check. Numbers are given from the top down, and the rest is left to the guest's own root. A device that
the guest has already keeps its address, if it is on an expander bus of its own root complex; such a bus keeps its
number as long as there is room for what is below it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from vfioctl.domain.model.layout import NO_TOPOLOGY, Choice, Device, Expander, GuestTopology, Placed, Port
from vfioctl.errors import BadSpec

BUSES, MOST_PORTS = 256, 32
_LOWEST = 32
"""The buses below this are for the guest's own root, with its disks and networks."""
_Key = tuple[str, int | None]
"""A root complex of the host and a cell of the guest; None for the guest's own root."""


def expanders(
    devices: Sequence[Device], cell_of: Mapping[int, int], topology: GuestTopology = NO_TOPOLOGY, *, nccl: bool = False
) -> tuple[Expander, ...]:
    """Return the expander buses, sorted by number; devices without a node are on the root. `cell_of`: by host node.
    `topology`: of an existing domain. `nccl`: whether one cell gets them too. Raises BadSpec for too many devices."""
    complexes = defaultdict[_Key, list[Device]](list)
    is_plain = not (nccl or topology.expanders) and len(cell_of) < 2
    for device in devices:
        cell = None if is_plain else cell_of.get(-1 if device.node is None else device.node)
        complexes["" if cell is None else device.complex, cell].append(device)
    buses = list(_unnumbered(complexes, topology))
    numbers = _numbers(buses, topology)
    if numbers is None or sum(len(bus.ports) for bus in buses if bus.cell is None) > BUSES - _LOWEST:
        raise BadSpec(f"{len(devices)} devices need more PCI buses than a guest has", hint="give it fewer devices")
    return tuple(expander._replace(bus_number=number) for expander, number in zip(buses, numbers, strict=True))


def _unnumbered(complexes: Mapping[_Key, Sequence[Device]], topology: GuestTopology) -> Iterator[Expander]:
    """Yield the expander buses without their numbers, for each root complex first those that are there."""
    owners: dict[int | None, _Key] = {}
    for key, device in ((key, device) for key, devices in complexes.items() for device in devices):
        current = topology.slots.get(device.subject)
        if current and (current.expander is None) == (key[1] is None):
            owners.setdefault(current.expander, key)
    for key, devices in complexes.items():
        own = [index for index, owner in owners.items() if owner == key]
        kept, fresh = _ports(devices, topology, own)
        for index in own:
            if index is None:
                yield Expander(tuple(kept[index]), *key)
                continue
            free = _free_slots(index, topology)
            numbered = [port._replace(slot=slot) for port, slot in zip(fresh, free, strict=False)]
            fresh = fresh[len(numbered) :]
            yield Expander((*kept[index], *numbered), *key, controller=index, was=topology.expanders[index].bus_number)
        for first in range(0, len(fresh), MOST_PORTS):
            chunk = fresh[first : first + MOST_PORTS]
            yield Expander(tuple(port._replace(slot=slot) for slot, port in enumerate(chunk)), *key)


def _free_slots(index: int, topology: GuestTopology) -> Iterable[int]:
    used = {port.slot for port in topology.expanders[index].ports.values()}
    return (slot for slot in range(MOST_PORTS) if slot not in used)


def _ports(
    devices: Sequence[Device], topology: GuestTopology, own_expanders: Collection[int | None]
) -> tuple[Mapping[int | None, Sequence[Port]], Sequence[Port]]:
    """Return the ports that are there, by expander bus, and new ones. A new function joins those of its card."""
    all_slots = ((device, topology.slots.get(device.subject)) for device in devices)
    slots = {device: was for device, was in all_slots if was and was.expander in own_expanders}
    kept = defaultdict[tuple[int | None, int, int], list[Placed]](list)
    for device, slot in slots.items():
        placed = Placed(device, slot.function, multifunction=False, slot=slot.slot, was=slot, stays=True)
        kept[slot.expander, slot.bus, slot.slot].append(placed)
    fresh, cards = [], defaultdict[str, list[Device]](list)
    for device in devices:
        cards[device.slot].append(device)
    for card in cards.values():
        new = [device for device in card if device not in slots]
        if known := [slots[device] for device in card if device in slots]:
            siblings = kept[known[0].expander, known[0].bus, known[0].slot]
            siblings += _joining(new, siblings, topology)
        elif new:
            fresh.append(_port(new, topology))
    ports_by_bus = defaultdict[int | None, list[Port]](list)
    for (expander, bus, _), placed_there in kept.items():
        ports = topology.expanders[expander].ports if expander is not None else {}
        slot_of_port = ports[bus].slot if bus in ports else 0
        ports_by_bus[expander].append(Port(_in_order(placed_there), slot=slot_of_port, controller=bus))
    return ports_by_bus, fresh


def _joining(new: Sequence[Device], siblings: Sequence[Placed], topology: GuestTopology) -> Iterator[Placed]:
    """Yield the functions that come to those of their card, with their own numbers where these are free."""
    used = {sibling.function for sibling in siblings}
    for device in new:
        own = _number(device)
        function = next(number for number in (own, *range(len(used) + 1)) if number not in used)
        used.add(function)
        was = topology.slots.get(device.subject)
        yield Placed(device, function, multifunction=False, slot=siblings[0].slot, was=was)


def _port(devices: Sequence[Device], topology: GuestTopology) -> Port:
    """Return the port of the functions of one card. They keep their function numbers, if one of them has number 0."""
    numbers = [_number(device) for device in devices]
    if 0 not in numbers:
        numbers = list(range(len(devices)))
    placed = (
        Placed(device, number, multifunction=False, was=topology.slots.get(device.subject))
        for device, number in zip(devices, numbers, strict=True)
    )
    return Port(_in_order(placed))


def _number(device: Device) -> int:
    return int(device.subject[-1]) if device.slot != device.subject else 0


def _in_order(placed: Iterable[Placed]) -> tuple[Placed, ...]:
    devices = sorted(placed, key=lambda device: device.function)
    return tuple(device._replace(multifunction=len(devices) > 1 and device.function == 0) for device in devices)


def _numbers(expanders: Sequence[Expander], topology: GuestTopology) -> Sequence[int | None] | None:
    """Return the bus number of each, None for the guest's own root; None if there are too few."""
    taken = list(_untouched(expanders, topology))
    numbers: dict[int, int] = {}
    fresh = [sum(port.controller is None for port in expander.ports) for expander in expanders]
    sizes = [1 + number for number in fresh]
    for place, expander in enumerate(expanders):
        if expander.controller is not None:
            sizes[place] += sum(_left(expander.controller, expanders, topology))
    for place in sorted(range(len(expanders)), key=lambda place: fresh[place] > 0):  # one that grows makes way
        was = expanders[place].was
        wanted = range(was or 0, (was or 0) + sizes[place])
        if was is not None and wanted.stop <= BUSES and _is_free(wanted, taken):
            numbers[place] = was
            taken.append(wanted)
    for place in reversed(range(len(expanders))):
        if expanders[place].cell is None or place in numbers:
            continue
        tops = sorted({BUSES, *(range_.start for range_ in taken)}, reverse=True)
        starts = (top - sizes[place] for top in tops)
        start = next((first for first in starts if _is_free(range(first, first + sizes[place]), taken)), 0)
        if start < _LOWEST:
            return None
        numbers[place] = start
        taken.append(range(start, start + sizes[place]))
    return [numbers.get(place) for place in range(len(expanders))]


def _is_free(wanted: range, taken: Iterable[range]) -> bool:
    return all(wanted.stop <= used.start or used.stop <= wanted.start for used in taken)


def _untouched(expanders: Sequence[Expander], topology: GuestTopology) -> Iterator[range]:
    """Yield the numbers of the expander buses that stay as they are, because other devices are on them."""
    reused = {expander.controller for expander in expanders}
    for index, expander in topology.expanders.items():
        left = list(_left(index, expanders, topology))
        if index not in reused and expander.bus_number is not None and (left or not expander.ports):
            yield range(expander.bus_number, expander.bus_number + 1 + sum(left))


def _left(index: int, expanders: Sequence[Expander], topology: GuestTopology) -> Iterator[int]:
    """Yield the bus numbers that each port of an expander bus takes, without those whose devices all leave it."""
    leaving = {placed.device.subject for placed in moved(expanders)}
    for bus, port in topology.expanders[index].ports.items():
        behind = [subject for subject, slot in topology.slots.items() if slot.bus == bus]
        if not (port.only_host_devices and leaving.issuperset(behind)):
            yield port.buses


def placed_on(expanders: Iterable[Expander]) -> Iterator[Placed]:
    """Yield the devices behind the ports of these buses."""
    return (placed for expander in expanders for port in expander.ports for placed in port.devices)


def moved(expanders: Iterable[Expander]) -> Iterator[Placed]:
    """Yield those that get another address in the guest than they have had."""
    return (placed for placed in placed_on(expanders) if placed.was and not placed.stays)


def choices(buses: Sequence[Expander], *, nccl: bool = False) -> Iterator[Choice]:
    """Yield why each expander bus is there, and what is at another address than before."""
    for expander in buses:
        devices = [placed.device for placed in placed_on([expander])]
        names = ", ".join(device.label for device in devices)
        if expander.bus_number is None:
            why = "no NUMA node is known for them"
            if any(device.node is not None for device in devices):
                why = "the guest has one NUMA node, and needs no expander bus to show it"
            yield Choice("the guest's own PCI root", names, why)
            continue
        what = f"PCI expander bus {expander.bus_number} in guest cell {expander.cell}"
        why = f"below root complex {expander.complex} of the host; the guest takes their NUMA node from the bus"
        why += "; NCCL's topology names its number" if nccl else ""
        is_new = expander.was in (None, expander.bus_number)
        weaker = "" if is_new else f"it was bus {expander.was}: the guest sees other bus numbers"
        yield Choice(what, names, why, weaker=weaker)
    if labels := [placed.device.label for placed in moved(buses)]:
        yield Choice(
            "devices at other addresses in the guest",
            ", ".join(labels),
            "they were not on an expander bus of their own root complex",
            weaker="the guest may call them differently",
        )
