"""Keeps room for vGPUs that do not exist now: those that definitions create at boot, and those that are claimed. Pure.
Definitions get their room if there is other room; what is claimed is never given to another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from vfioctl.errors import NoCapacity, some_of
from vfioctl.vgpu.model.vgpu import NONE, Count, Sharing, SizeMode, VgpuCard, Vgpus, VgpuState, VgpuType
from vfioctl.vgpu.placement.capacity import after


@dataclass(frozen=True, slots=True)
class Reserved:
    """A vGPU that does not exist now, and is created at boot or belongs to somebody."""

    name: str
    """The UUID of an mdev, or the address of a VF."""
    parent: str
    type: str
    """The id or the name of its type."""
    by: str = ""
    """what reserves it, as `claim 1a2b3c4d of vm/web1`; empty for a definition"""
    release: str = ""
    """the command that ends the reservation"""


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
    names = []
    for vgpu in (vgpu for card in cards if card.called(word) for vgpu in _on(card, reserved)):
        place = "" if vgpu.parent == vgpu.name else f" on {vgpu.parent}"
        names.append(f"{vgpu.name}{place}{f' ({vgpu.by})' if vgpu.by else ''}")
    return some_of(names)


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


def without_claimed(cards: Iterable[VgpuCard], claimed: Sequence[Reserved]) -> tuple[VgpuCard, ...]:
    """The cards with the room that certainly leaves enough for all `claimed`."""
    return tuple(_without_claimed(card, _on(card, claimed)) for card in cards)


def _without_claimed(card: VgpuCard, claimed: Sequence[Reserved]) -> VgpuCard:
    wanted = [kind for vgpu in claimed for kind in card.called(vgpu.type)[:1]]
    if not wanted:
        return card
    left = _with_room_kept(card, claimed)
    if left.types == card.types and not _fit(card, wanted):  # too few for them as it is
        return replace(left, types=tuple(replace(kind, available=NONE) for kind in card.types))
    same = card.sharing is Sharing.SIZES and card.size_mode is not SizeMode.MIXED
    sizes = {kind.size for kind in wanted}
    types = (replace(kind, available=NONE) if same and kind.size not in sizes else kind for kind in left.types)
    return replace(left, types=tuple(types))


def _fit(card: VgpuCard, wanted: Iterable[VgpuType]) -> bool:
    try:
        after(card, Counter(kind.id for kind in wanted))
    except NoCapacity:
        return False
    return True


def _at_most(now: Count, most: int | None) -> Count:
    """What fits for certain now does so until the others exist."""
    return now if most is None else Count(min(now.at_least, most), most)
