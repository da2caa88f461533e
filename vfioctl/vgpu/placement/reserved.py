"""Keeps room for vGPUs that definitions create at boot, so that they still fit then. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from vfioctl.errors import NoCapacity
from vfioctl.vgpu.model.vgpu import Count, VgpuCard, Vgpus, VgpuState
from vfioctl.vgpu.placement.capacity import after

_MOST_NAMED = 4


@dataclass(frozen=True, slots=True)
class Reserved:
    """A vGPU that is created at boot and does not exist now."""

    name: str
    """The UUID of an mdev, or the address of a VF."""
    parent: str
    type: str
    """The id or the name of its type."""


def reserved_mdevs(vgpus: Vgpus) -> tuple[Reserved, ...]:
    """The mediated devices that have a definition with `start: auto`, vfioctl's or not, and do not exist."""
    return tuple(
        Reserved(vgpu.id, vgpu.parent, vgpu.definition.type)
        for vgpu in vgpus.instances
        if vgpu.state is VgpuState.DEFINED and vgpu.definition and vgpu.definition.start == "auto"
    )


def with_room_kept(cards: Iterable[VgpuCard], reserved: Sequence[Reserved]) -> tuple[VgpuCard, ...]:
    """The cards with the room that remains once all `reserved` exist."""
    return tuple(_with_room_kept(card, _on(card, reserved)) for card in cards)


def kept_for(cards: Iterable[VgpuCard], word: str, reserved: Sequence[Reserved]) -> str:
    """The vGPUs that cards with the type `word` keep room for, as words; empty for none."""
    names = [f"{vgpu.name} on {vgpu.parent}" for card in cards if card.called(word) for vgpu in _on(card, reserved)]
    more = f" and {len(names) - _MOST_NAMED} more" if names[_MOST_NAMED:] else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _on(card: VgpuCard, reserved: Iterable[Reserved]) -> list[Reserved]:
    parents = {parent.name for parent in card.parents}
    return [vgpu for vgpu in reserved if vgpu.parent in parents]


def _with_room_kept(card: VgpuCard, reserved: Sequence[Reserved]) -> VgpuCard:
    if not reserved:
        return card
    taken = {vgpu.parent for vgpu in reserved} - {card.id}  # a VF has one vGPU, a PF has several
    parents = tuple(replace(parent, offers={}) if parent.name in taken else parent for parent in card.parents)
    request = Counter(kind.id for vgpu in reserved for kind in card.called(vgpu.type)[:1])
    try:
        left = after(card, request).available
    except NoCapacity:  # they do not fit as it is
        return replace(card, parents=parents)
    types = (replace(kind, available=_at_most(kind.available, left[kind.id].at_most)) for kind in card.types)
    return replace(card, parents=parents, types=tuple(types))


def _at_most(now: Count, most: int | None) -> Count:
    """What fits for certain now does so until the others exist."""
    return now if most is None else Count(min(now.at_least, most), most)
