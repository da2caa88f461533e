"""Which cards and which of their places may take vGPUs of a type, and how many. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from vfioctl.vgpu.model.vgpu import Count, Dialect, VgpuCard, VgpuParent, VgpuType


@dataclass(frozen=True, slots=True)
class Slot:
    """One place, and how many it may take. `is_read` tells whether it said so itself."""

    parent: str
    room: int
    is_read: bool


@dataclass(frozen=True, slots=True)
class Candidate:
    """A card that has the type. Its slots are in the order in which they are to be taken."""

    card: VgpuCard
    kind: VgpuType
    slots: tuple[Slot, ...]

    @property
    def room(self) -> int:
        """How many may fit at most."""
        return self._bounded(sum(slot.room for slot in self.slots))

    @property
    def read_room(self) -> int:
        """How many of those on places that could be read."""
        return self._bounded(sum(slot.room for slot in self.slots if slot.is_read))

    def _bounded(self, room: int) -> int:
        at_most = self.kind.available.at_most
        return room if at_most is None else min(room, at_most)

    @property
    def vgpus(self) -> int:
        """How many are there that count, of whatever type."""
        return sum(each.existing for each in self.card.types)

    @property
    def alike(self) -> int:
        """How many of the type's size are there."""
        return sum(each.existing for each in self.card.types if each.size == self.kind.size)


def candidate(
    card: VgpuCard, kind: VgpuType, count: int, *, only: str | None = None, exclude: Collection[str] = ()
) -> Candidate:
    """The card with the places for up to `count`: on one of them only, or on all that are not shunned."""
    found = [
        (parent, slot)
        for parent in card.parents
        if (only is None or parent.name == only) and parent.name not in exclude
        if (slot := _slot(card, parent, kind, count)).room
    ]
    sizes = gauges(card)
    found.sort(key=lambda each: _order(each[0], each[1], kind, sizes))
    return Candidate(card, kind, tuple(slot for _, slot in found))


def _slot(card: VgpuCard, parent: VgpuParent, kind: VgpuType, count: int) -> Slot:
    if card.dialect is Dialect.VENDOR and parent.instances:
        return Slot(parent.name, 0, is_read=True)  # its list may name what it could have instead
    if kind.id in parent.unknown and kind.id not in parent.offers:
        return Slot(parent.name, count if parent.name == card.id else 1, is_read=False)
    return Slot(parent.name, parent.offers.get(kind.id, 0), is_read=True)


def _order(
    parent: VgpuParent, slot: Slot, kind: VgpuType, sizes: Mapping[int, VgpuType]
) -> tuple[bool, list[int], int, int, str]:
    """First those that could be read, then those that offer others the least, the largest types before all."""
    others = [0 if gauge.size == kind.size else parent.offers.get(gauge.id, 0) for gauge in sizes.values()]
    return not slot.is_read, others, parent.instances, len(parent.name), parent.name


def gauges(card: VgpuCard) -> Mapping[int, VgpuType]:
    """Of each size, largest first, the type that there is most room for now: by those it is seen what is left."""
    found: dict[int, VgpuType] = {}
    for kind in card.types:
        size = bulk(kind)
        if size not in found or most(kind.available) > most(found[size].available):
            found[size] = kind
    return {size: found[size] for size in sorted(found, reverse=True)}


def bulk(kind: VgpuType) -> int:
    """How large a type is beside the others of its card: in bytes, or in what it takes. 0 where that is unknown."""
    return kind.framebuffer_bytes or sum(kind.takes.values())


def most(count: Count) -> int:
    """How many that may be, or certainly are where not even that is known."""
    return count.at_least if count.at_most is None else count.at_most
