"""Computes a card's room for vGPUs, now and after some are created. Pure. Every answer is a range that contains the
true number, assumes no limit that the kernel's interface does not report, and ignores what others create meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

from vfioctl.errors import NoCapacity
from vfioctl.vgpu.model.vgpu import NONE, Count, Dialect, Forecast, Sharing, SizeMode, VgpuCard, VgpuType

GIB = 1 << 30
_Size = tuple[int | None, int | None]
Request = Mapping[str, int]
"""The number of vGPUs to create, by type id."""


def counted(card: VgpuCard) -> VgpuCard:
    """The card with its sharing rule, its size mode and the available number of each type, derived from the parents'
    offers. `card.size_mode`: the mode that NVML reports, or unknown."""
    card = replace(card, sharing=_sharing(card))
    card = replace(card, size_mode=_size_mode(card))
    return replace(card, types=tuple(replace(kind, available=_available(card, kind)) for kind in card.types))


def after(card: VgpuCard, request: Request) -> Forecast:
    """The capacity that remains after the request. Raises NoCapacity when the request certainly does not fit."""
    wanted = {kind: count for kind, count in request.items() if count > 0}
    certain = True
    for kind in (vgpu_type for vgpu_type in card.types if vgpu_type.id in wanted):
        others = {other: count for other, count in wanted.items() if other != kind.id}
        room = _remaining(card, kind, others)
        if room.at_most is not None and wanted[kind.id] > room.at_most:
            beside = f" beside {_words(card, others)}" if others else ""
            raise NoCapacity(
                f"{card.id} has no room for {wanted[kind.id]} of {kind.profile or kind.id}{beside}: "
                f"{f'at most {room.at_most}' if room.at_most else 'none'}",
                hint="vfioctl vgpu types shows what there is room for",
            )
        certain = certain and wanted[kind.id] <= room.at_least
    return Forecast(card.id, wanted, certain, {kind.id: _remaining(card, kind, wanted) for kind in card.types})


def _words(card: VgpuCard, request: Request) -> str:
    names = {kind.id: kind.profile or kind.id for kind in card.types}
    return ", ".join(f"{count} of {names.get(kind, kind)}" for kind, count in request.items())


def _sharing(card: VgpuCard) -> Sharing:
    if card.sharing is not Sharing.UNKNOWN:
        return card.sharing
    if len(card.parents) == 1 and not _unread(card) and _stock(card) is not None:
        return Sharing.POOL
    sized = [kind for kind in card.types if kind.framebuffer_bytes and kind.max_instances]
    return Sharing.SIZES if sized and len(sized) == len(card.types) else Sharing.UNKNOWN


def _size_mode(card: VgpuCard) -> SizeMode:
    """The mode that the driver reports, unless the existing vGPUs contradict it: they are read at another moment."""
    sizes = {kind.size for kind in card.types if kind.existing}
    offered = {kind.size for kind in card.types if _offers(card, kind)}
    if card.sharing is not Sharing.SIZES or any(vgpus is not None for vgpus, _ in sizes | offered):
        return SizeMode.UNKNOWN  # MIG-backed vGPUs follow other rules
    shown = SizeMode.UNKNOWN if _unread(card) else _mode_shown(card, sizes, offered)
    return shown if shown is SizeMode.MIXED or card.size_mode is SizeMode.UNKNOWN else card.size_mode


def _mode_shown(card: VgpuCard, sizes: AbstractSet[_Size], offered: AbstractSet[_Size]) -> SizeMode:
    """The mode that the existing vGPUs and the offers show. Two sizes on one card show mixed-size mode. If only the
    existing size is still offered, but a smaller type is not, the card is in same-size mode: in mixed-size mode a
    smaller type fits wherever a larger one does."""
    if not sizes or any(memory is None for _, memory in sizes | offered):
        return SizeMode.UNKNOWN
    if len(sizes) > 1 or offered - sizes:
        return SizeMode.MIXED
    smaller = any(
        kind.framebuffer_bytes and kind.mig_slices is None and (None, kind.framebuffer_bytes) < min(sizes)
        for kind in card.types
    )
    return SizeMode.SAME if offered == sizes and smaller else SizeMode.UNKNOWN


def _unread(card: VgpuCard, kind: VgpuType | None = None) -> bool:
    """Whether the offers of some parent could not be read, for one type or for any."""
    types = card.types if kind is None else (kind,)
    unread = [parent for parent in card.parents if parent.unknown]
    if card.dialect is Dialect.VENDOR:  # one file lists all types
        return bool(unread)
    return any(vgpu_type.id in parent.unknown for parent in unread for vgpu_type in types)


def _offers(card: VgpuCard, kind: VgpuType) -> int:
    """The sum of all parents' offers: an upper bound, because a vGPU on one parent may reduce the offers of others."""
    return sum(parent.offers.get(kind.id, 0) for parent in card.parents)


def _available(card: VgpuCard, kind: VgpuType) -> Count:
    if card.sharing is Sharing.VFS:
        return kind.available
    at_least = max((parent.offers.get(kind.id, 0) for parent in card.parents), default=0)
    room = _room(card, kind, {})
    if _unread(card, kind):
        return Count(at_least, None if room is None else max(room, at_least))
    offers = _offers(card, kind)
    at_most = offers if room is None else min(offers, max(room, at_least))
    return Count(at_most if _is_exact(card, kind) else at_least, at_most)


def _is_exact(card: VgpuCard, kind: VgpuType) -> bool:
    """Whether the upper bound is exact: same-size mode, a known maximum, and no hidden or unread vGPU."""
    if card.size_mode is not SizeMode.SAME or kind.max_instances is None or _unread(card, kind):
        return False
    # the type of a vGPU that was removed while open is unknown, but it still uses its share
    return sum(parent.instances for parent in card.parents) <= sum(vgpu_type.existing for vgpu_type in card.types)


def _room(card: VgpuCard, kind: VgpuType, request: Request) -> int | None:
    """The most vGPUs of a type that fit beside the existing and the requested ones; None without a known limit."""
    if card.sharing is not Sharing.SIZES:
        return None
    taken = [(other, other.existing + request.get(other.id, 0)) for other in card.types]
    alike = sum(number for other, number in taken if other.size == kind.size)
    bounds = [] if kind.max_instances is None else [kind.max_instances - alike]
    if card.memory_bytes and kind.framebuffer_bytes:
        used = sum((other.framebuffer_bytes or 0) * number for other, number in taken)
        bounds.append((_nominal(card.memory_bytes) - used) // kind.framebuffer_bytes)
    return max(0, min(bounds)) if bounds else None


def _nominal(memory_bytes: int) -> int:
    """An upper bound of the nominal memory: error correction uses a sixteenth, the driver less than 1 GiB."""
    return memory_bytes * 16 // 15 + GIB


def _remaining(card: VgpuCard, kind: VgpuType, request: Request) -> Count:
    if not request:
        return kind.available
    if card.sharing is Sharing.VFS:
        return NONE
    if card.sharing is Sharing.POOL:
        return _left_of_stock(card, kind, request)
    own, now = request.get(kind.id, 0), kind.available
    if own == sum(request.values()):
        return Count(max(0, now.at_least - own), None if now.at_most is None else max(0, now.at_most - own))
    alike = {other.id for other in card.types if other.size == kind.size}
    same = sum(number for other, number in request.items() if other in alike)
    left = None if now.at_most is None else now.at_most - own
    bounds = [b for b in (left, _places(card, kind, request), _room(card, kind, request)) if b is not None]
    at_most = max(0, min(bounds)) if bounds else None
    if card.size_mode is SizeMode.SAME and same < sum(request.values()):
        return NONE
    is_exact = len(card.parents) > 1 and _is_exact(card, kind)
    return Count(at_most if is_exact and at_most is not None else 0, at_most)


def _places(card: VgpuCard, kind: VgpuType, request: Request) -> int | None:
    """The number of free parents after the request: an upper bound when each parent carries one vGPU."""
    most = max((n for parent in card.parents for n in parent.offers.values()), default=0)
    if len(card.parents) == 1 or most != 1 or _unread(card):
        return None
    elsewhere = sum(any(parent.offers.values()) and not parent.offers.get(kind.id) for parent in card.parents)
    return _offers(card, kind) - max(0, sum(request.values()) - elsewhere)


def _stock(card: VgpuCard) -> Mapping[str, tuple[int, int | None]] | None:
    """The free amount of each resource of the pool, as `[at least, below)`; None when the types share no pool. For one
    resource, a type that fits n more times shows that at least n times its amount is free, and less than n + 1 times.
    When a type uses several resources, any of them may be the one that limits it."""
    amounts = {amount for kind in card.types for amount in kind.takes}
    if not amounts or any(set(kind.takes) != amounts or min(kind.takes.values()) <= 0 for kind in card.types):
        return None
    stock: dict[str, tuple[int, int | None]] = {}
    for amount in amounts:
        least = max(_offers(card, kind) * kind.takes[amount] for kind in card.types)
        below = min((_offers(card, kind) + 1) * kind.takes[amount] for kind in card.types)
        stock[amount] = least, below if len(amounts) == 1 else None
        if len(amounts) == 1 and least >= below:
            return None
    return stock


def _left_of_stock(card: VgpuCard, kind: VgpuType, request: Request) -> Count:
    stock, types = _stock(card) or {}, {vgpu_type.id: vgpu_type for vgpu_type in card.types}
    own = request.get(kind.id, 0)
    at_most = _offers(card, kind) - own
    fits = []
    for amount, (least, below) in stock.items():
        taken = sum(types[other].takes[amount] * number for other, number in request.items() if other in types)
        amount_of_one = kind.takes[amount]
        fits.append((least - taken) // amount_of_one)
        if below is not None:
            at_most = min(at_most, -((taken - below) // amount_of_one) - 1)
    at_most = max(0, at_most)
    at_least = at_most if own == sum(request.values()) else max(0, min(at_most, *fits) if fits else 0)
    return Count(at_least, at_most)
