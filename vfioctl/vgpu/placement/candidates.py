"""Finds the cards and parents that can take vGPUs of a type, and how many. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from vfioctl.vgpu.model.vgpu import Count, Dialect, VgpuCard, VgpuParent, VgpuType


@dataclass(frozen=True, slots=True)
class Slot:
    """A parent, and how many vGPUs fit on it. `is_read`: False when its offers could not be read."""

    parent: str
    room: int
    is_read: bool


@dataclass(frozen=True, slots=True)
class Candidate:
    """A card that has the type. Its slots are in order of preference."""

    card: VgpuCard
    kind: VgpuType
    slots: tuple[Slot, ...]

    @property
    def room(self) -> int:
        """The maximum number of vGPUs that may fit."""
        return self._bounded(sum(slot.room for slot in self.slots))

    @property
    def read_room(self) -> int:
        """The part of `room` on parents whose offers could be read."""
        return self._bounded(sum(slot.room for slot in self.slots if slot.is_read))

    def _bounded(self, room: int) -> int:
        at_most = self.kind.available.at_most
        return room if at_most is None else min(room, at_most)

    @property
    def vgpus(self) -> int:
        """The number of existing vGPUs that use capacity, of any type."""
        return sum(vgpu_type.existing for vgpu_type in self.card.types)

    @property
    def alike(self) -> int:
        """The number of existing vGPUs of the same size."""
        return sum(vgpu_type.existing for vgpu_type in self.card.types if vgpu_type.size == self.kind.size)


def candidate(
    card: VgpuCard, kind: VgpuType, count: int, *, only: str | None = None, exclude: Collection[str] = ()
) -> Candidate:
    """The card with the parents that can take up to `count` vGPUs. `only`: use this parent; `exclude`: not these."""
    parents = [
        (parent, slot)
        for parent in card.parents
        if (only is None or parent.name == only) and parent.name not in exclude
        if (slot := _slot(card, parent, kind, count)).room
    ]
    sizes = gauges(card)
    parents.sort(key=lambda pair: _order(pair[0], pair[1], kind, sizes))
    return Candidate(card, kind, tuple(slot for _, slot in parents))


def _slot(card: VgpuCard, parent: VgpuParent, kind: VgpuType, count: int) -> Slot:
    if card.dialect is Dialect.VENDOR and parent.instances:
        # its list may have types that could replace the current one
        return Slot(parent.name, 0, is_read=True)
    if kind.id in parent.unknown and kind.id not in parent.offers:
        return Slot(parent.name, count if parent.name == card.id else 1, is_read=False)
    return Slot(parent.name, parent.offers.get(kind.id, 0), is_read=True)


def _order(
    parent: VgpuParent, slot: Slot, kind: VgpuType, sizes: Mapping[int, VgpuType]
) -> tuple[bool, list[int], int, int, str]:
    """Sorts parents: readable ones first, then those that offer the fewest of other sizes, largest sizes first."""
    others = [0 if gauge.size == kind.size else parent.offers.get(gauge.id, 0) for gauge in sizes.values()]
    return not slot.is_read, others, parent.instances, len(parent.name), parent.name


def gauges(card: VgpuCard) -> Mapping[int, VgpuType]:
    """For each size, largest first, the type with the most room. These types measure the capacity of a card."""
    types: dict[int, VgpuType] = {}
    for kind in card.types:
        size = bulk(kind)
        if size not in types or most(kind.available) > most(types[size].available):
            types[size] = kind
    return {size: types[size] for size in sorted(types, reverse=True)}


def bulk(kind: VgpuType) -> int:
    """The size of a type relative to others of its card: in bytes, or in units of its pool. 0 if unknown."""
    return kind.framebuffer_bytes or sum(kind.takes.values())


def most(count: Count) -> int:
    """The upper bound of a count; the lower bound if there is none."""
    return count.at_least if count.at_most is None else count.at_most
