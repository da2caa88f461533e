"""Lays out the guest's PCI: an expander bus for each root complex of the host, a root port for each card. Pure.

A PCI endpoint has no NUMA node of its own: the guest takes it from the root bus, so each node needs an expander bus.
GPUs below one root complex reach each other without crossing it, so each complex has one. Everything below an expander
bus must have a number between its own and that of the next one (QEMU, docs/pcie.txt, section 4), which libvirt does not
check. Numbers are given from the top down, and the rest is left to the guest's own root.

A device that the guest has already keeps its address, if it is on an expander bus of its own root complex. Such a bus
keeps its number as long as there is room for what is below it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain

from vfioctl.domain.model.layout import NO_TOPOLOGY, Choice, Device, Expander, GuestTopology, Placed, Port
from vfioctl.errors import BadSpec

BUSES, MOST_PORTS = 256, 32
_LOWEST = 32
"""The buses below this are for the guest's own root, with its disks and networks."""
_Key = tuple[str, int | None]
"""A root complex of the host and a cell of the guest; None for the guest's own root."""


def expanders(
    devices: Sequence[Device], cell_of: Mapping[int, int], there: GuestTopology = NO_TOPOLOGY
) -> tuple[Expander, ...]:
    """Return the expander buses, in the order of their bus numbers; devices without a node are on the guest's root.

    `cell_of`: the guest's cell of each node of the host. `there`: the PCI of a domain that there is. Raises BadSpec if
    there are too many devices.
    """
    complexes: dict[_Key, list[Device]] = {}
    for device in devices:
        cell = cell_of.get(-1 if device.node is None else device.node)
        complexes.setdefault(("" if cell is None else device.complex, cell), []).append(device)
    found = list(_unnumbered(complexes, there))
    numbers = _numbers(found, there)
    if numbers is None:
        raise BadSpec(f"{len(devices)} devices need more PCI buses than a guest has", hint="give it fewer devices")
    return tuple(each._replace(bus_number=number) for each, number in zip(found, numbers, strict=True))


def _unnumbered(complexes: Mapping[_Key, Sequence[Device]], there: GuestTopology) -> Iterator[Expander]:
    """Yield the expander buses without their numbers, for each root complex first those that are there."""
    owners: dict[int | None, _Key] = {}
    for key, device in ((key, device) for key, devices in complexes.items() for device in devices):
        seat = there.slots.get(device.subject)
        if seat and (seat.expander is None) == (key[1] is None):
            owners.setdefault(seat.expander, key)
    for key, devices in complexes.items():
        homes = [index for index, owner in owners.items() if owner == key]
        kept, fresh = _ports(devices, there, homes)
        for index in homes:
            if index is None:
                yield Expander(tuple(kept[index]), *key)
                continue
            free = _free_slots(index, there)
            given = [port._replace(slot=slot) for port, slot in zip(fresh, free, strict=False)]
            fresh = fresh[len(given) :]
            yield Expander((*kept[index], *given), *key, controller=index, was=there.expanders[index].bus_number)
        for first in range(0, len(fresh), MOST_PORTS):
            chunk = fresh[first : first + MOST_PORTS]
            yield Expander(tuple(port._replace(slot=slot) for slot, port in enumerate(chunk)), *key)


def _free_slots(index: int, there: GuestTopology) -> Iterable[int]:
    used = {port.slot for port in there.expanders[index].ports.values()}
    return (slot for slot in range(MOST_PORTS) if slot not in used)


def _ports(
    devices: Sequence[Device], there: GuestTopology, homes: Collection[int | None]
) -> tuple[Mapping[int | None, Sequence[Port]], Sequence[Port]]:
    """Return the ports that are there, by expander bus, and new ones. A new function joins those of its card."""
    seats = {device: seat for device in devices if (seat := there.slots.get(device.subject)) and seat.expander in homes}
    kept: dict[tuple[int | None, int, int], list[Placed]] = {}
    for device, seat in seats.items():
        placed = Placed(device, seat.function, multifunction=False, slot=seat.slot, was=seat, stays=True)
        kept.setdefault((seat.expander, seat.bus, seat.slot), []).append(placed)
    fresh = []
    cards: dict[str, list[Device]] = {}
    for device in devices:
        cards.setdefault(device.slot, []).append(device)
    for card in cards.values():
        new = [device for device in card if device not in seats]
        where = next(((seat.expander, seat.bus, seat.slot) for each in card if (seat := seats.get(each))), None)
        if where:
            kept[where] += _joining(new, kept[where], there)
        elif new:
            fresh.append(_port(new, there))
    found: dict[int | None, list[Port]] = {}
    for (expander, bus, _), placed_there in kept.items():
        ports = there.expanders[expander].ports if expander is not None else {}
        found.setdefault(expander, []).append(
            Port(_in_order(placed_there), slot=ports[bus].slot if bus in ports else 0, controller=bus)
        )
    return found, fresh


def _joining(new: Sequence[Device], siblings: Sequence[Placed], there: GuestTopology) -> Iterator[Placed]:
    """Yield the functions that come to those of their card, with their own numbers where these are free."""
    used = {each.function for each in siblings}
    for device in new:
        own = _number(device)
        function = next(number for number in (own, *range(len(used) + 1)) if number not in used)
        used.add(function)
        was = there.slots.get(device.subject)
        yield Placed(device, function, multifunction=False, slot=siblings[0].slot, was=was)


def _port(devices: Sequence[Device], there: GuestTopology) -> Port:
    """Return the port of the functions of one card. They keep their function numbers, if one of them has number 0."""
    numbers = [_number(device) for device in devices]
    if 0 not in numbers:
        numbers = list(range(len(devices)))
    return Port(
        _in_order(
            Placed(device, number, multifunction=False, was=there.slots.get(device.subject))
            for device, number in zip(devices, numbers, strict=True)
        )
    )


def _number(device: Device) -> int:
    return int(device.subject[-1]) if device.slot != device.subject else 0


def _in_order(placed: Iterable[Placed]) -> tuple[Placed, ...]:
    found = sorted(placed, key=lambda each: each.function)
    return tuple(each._replace(multifunction=len(found) > 1 and each.function == 0) for each in found)


# -- bus numbers -----------------------------------------------------------------------------------------


def _numbers(found: Sequence[Expander], there: GuestTopology) -> Sequence[int | None] | None:
    """Return the bus number of each, None for the guest's own root; None if there are too few."""
    taken = list(_untouched(found, there))
    numbers: dict[int, int] = {}
    sizes = [1 + sum(1 for port in each.ports if port.controller is None) for each in found]
    for place, each in enumerate(found):
        if each.controller is not None:
            sizes[place] += sum(_left(each.controller, found, there))
    grows = [any(port.controller is None for port in each.ports) for each in found]
    for place in sorted(range(len(found)), key=grows.__getitem__):  # one that grows makes way for the others
        was = found[place].was
        if (
            was is not None
            and was + sizes[place] <= BUSES
            and _is_free(wanted := range(was, was + sizes[place]), taken)
        ):
            numbers[place] = was
            taken.append(wanted)
    for place in reversed(range(len(found))):
        if found[place].cell is None or place in numbers:
            continue
        tops = sorted({BUSES, *(each.start for each in taken)}, reverse=True)
        starts = (top - sizes[place] for top in tops)
        start = next((each for each in starts if _is_free(range(each, each + sizes[place]), taken)), 0)
        if start < _LOWEST:
            return None
        numbers[place] = start
        taken.append(range(start, start + sizes[place]))
    return [numbers.get(place) for place in range(len(found))]


def _is_free(wanted: range, taken: Iterable[range]) -> bool:
    return all(wanted.stop <= each.start or each.stop <= wanted.start for each in taken)


def _untouched(found: Sequence[Expander], there: GuestTopology) -> Iterator[range]:
    """Yield the numbers of the expander buses that stay as they are, because other devices are on them."""
    homes = {each.controller for each in found}
    for index, each in there.expanders.items():
        left = list(_left(index, found, there))
        if index not in homes and each.bus_number is not None and (left or not each.ports):
            yield range(each.bus_number, each.bus_number + 1 + sum(left))


def _left(index: int, found: Sequence[Expander], there: GuestTopology) -> Iterator[int]:
    """Yield the bus numbers that each port of an expander bus takes, without those whose devices all leave it."""
    leaving = {placed.device.subject for placed in _moved(found)}
    for bus, port in there.expanders[index].ports.items():
        behind = [subject for subject, seat in there.slots.items() if seat.bus == bus]
        if not (port.only_host_devices and leaving.issuperset(behind)):
            yield port.buses


def _moved(found: Iterable[Expander]) -> Iterator[Placed]:
    ports = chain.from_iterable(each.ports for each in found)
    yield from (placed for port in ports for placed in port.devices if placed.was and not placed.stays)


# -- why -------------------------------------------------------------------------------------------------


def choices(found: Sequence[Expander]) -> Iterator[Choice]:
    """Yield why each expander bus is there, and what is at another address than before."""
    for each in found:
        names = ", ".join(placed.device.label for port in each.ports for placed in port.devices)
        if each.bus_number is None:
            yield Choice("the guest's own PCI root", names, "no NUMA node is known for them")
            continue
        what = f"PCI expander bus {each.bus_number} in guest cell {each.cell}"
        why = f"below root complex {each.complex} of the host; the guest takes their NUMA node from the bus"
        is_new = each.was in (None, each.bus_number)
        weaker = "" if is_new else f"it was bus {each.was}: the guest sees other bus numbers"
        yield Choice(what, names, why, weaker=weaker)
    if moved := list(_moved(found)):
        yield Choice(
            "devices at other addresses in the guest",
            ", ".join(placed.device.label for placed in moved),
            "they were not on an expander bus of their own root complex",
            weaker="the guest may call them differently",
        )
