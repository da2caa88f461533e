"""How many vGPUs a card has room for, and what remains after some are made. Pure arithmetic.

Every answer is a range that the truth lies in, as far as the kernel's interface tells: a rule that it does not tell is
never presumed. What is made beside vfioctl in the meantime is not foreseen.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

from vfioctl.errors import NoCapacity
from vfioctl.vgpu.model.vgpu import NONE, Count, Dialect, Forecast, Sharing, SizeMode, VgpuCard, VgpuType

GIB = 1 << 30
_Size = tuple[int | None, int | None]
Request = Mapping[str, int]
"""By type, how many are to be made."""


def counted(card: VgpuCard) -> VgpuCard:
    """The card with its rule, its mode and what of each type is available now, from what its parents offer.

    The mode that it comes with is what the driver said, if it did.
    """
    card = replace(card, sharing=_sharing(card))
    card = replace(card, size_mode=_size_mode(card))
    return replace(card, types=tuple(replace(kind, available=_available(card, kind)) for kind in card.types))


def after(card: VgpuCard, request: Request) -> Forecast:
    """What remains once all of the request is there. Raises NoCapacity for what certainly does not fit."""
    wanted = {kind: count for kind, count in request.items() if count > 0}
    certain = True
    for kind in (each for each in card.types if each.id in wanted):
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


# -- now ------------------------------------------------------------------------------------------------


def _sharing(card: VgpuCard) -> Sharing:
    if card.sharing is not Sharing.UNKNOWN:
        return card.sharing
    if len(card.parents) == 1 and not _unread(card) and _stock(card) is not None:
        return Sharing.POOL
    sized = [kind for kind in card.types if kind.framebuffer_bytes and kind.max_instances]
    return Sharing.SIZES if sized and len(sized) == len(card.types) else Sharing.UNKNOWN


def _size_mode(card: VgpuCard) -> SizeMode:
    """As the driver said, unless what is there disproves it: the lists are not read at one moment."""
    there = {kind.size for kind in card.types if kind.existing}
    offered = {kind.size for kind in card.types if _offers(card, kind)}
    if card.sharing is not Sharing.SIZES or any(vgpus is not None for vgpus, _ in there | offered):
        return SizeMode.UNKNOWN  # vGPUs of GPU instances have their own rules
    proven = SizeMode.UNKNOWN if _unread(card) else _proven_mode(card, there, offered)
    return proven if proven is SizeMode.MIXED or card.size_mode is SizeMode.UNKNOWN else card.size_mode


def _proven_mode(card: VgpuCard, there: AbstractSet[_Size], offered: AbstractSet[_Size]) -> SizeMode:
    """Two sizes beside each other prove one mode; the other is proven where only the size that is there still fits.

    For where several sizes may be, a smaller one fits wherever a larger does.
    """
    if not there or any(memory is None for _, memory in there | offered):
        return SizeMode.UNKNOWN
    if len(there) > 1 or offered - there:
        return SizeMode.MIXED
    smaller = any(
        kind.framebuffer_bytes and kind.mig_slices is None and (None, kind.framebuffer_bytes) < min(there)
        for kind in card.types
    )
    return SizeMode.SAME if offered == there and smaller else SizeMode.UNKNOWN


def _unread(card: VgpuCard, kind: VgpuType | None = None) -> bool:
    """Whether some parent could not be asked how many it offers, of one type or of any."""
    types = card.types if kind is None else (kind,)
    unread = [parent for parent in card.parents if parent.unknown]
    if card.dialect is Dialect.VENDOR:  # one file says it of all types
        return bool(unread)
    return any(each.id in parent.unknown for parent in unread for each in types)


def _offers(card: VgpuCard, kind: VgpuType) -> int:
    """How many all parents offer together: a bound, for what one of them gives the others may lose."""
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
    """Whether the bound is the number itself: so many of one size, no other beside it, and nothing there unseen."""
    if card.size_mode is not SizeMode.SAME or kind.max_instances is None or _unread(card, kind):
        return False
    # of one that was removed while it was open no type is told, and it still takes its share
    return sum(parent.instances for parent in card.parents) <= sum(each.existing for each in card.types)


def _room(card: VgpuCard, kind: VgpuType, request: Request) -> int | None:
    """For how many of a type there is room at most beside what is there and asked for. None where nothing tells."""
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
    """At most so much memory is printed on the box: error correction takes a sixteenth, the driver less than 1 GiB."""
    return memory_bytes * 16 // 15 + GIB


# -- afterwards ------------------------------------------------------------------------------------------


def _remaining(card: VgpuCard, kind: VgpuType, request: Request) -> Count:
    """What remains of one type once all of the request is there."""
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
    """A bound: where each parent carries one instance, what is made takes its place from all other types."""
    most = max((n for parent in card.parents for n in parent.offers.values()), default=0)
    if len(card.parents) == 1 or most != 1 or _unread(card):
        return None
    elsewhere = sum(any(parent.offers.values()) and not parent.offers.get(kind.id) for parent in card.parents)
    return _offers(card, kind) - max(0, sum(request.values()) - elsewhere)


def _stock(card: VgpuCard) -> Mapping[str, tuple[int, int | None]] | None:
    """How much there is of each amount that the types take: at least, and below what. None when they do not all fit.

    Of one amount, a type that still fits n times says that there is at least n times as much as it takes, and less
    than n + 1 times. Where several amounts are taken, any of them may be the one that runs out.
    """
    amounts = {amount for kind in card.types for amount in kind.takes}
    if not amounts or any(set(kind.takes) != amounts or min(kind.takes.values()) <= 0 for kind in card.types):
        return None
    found: dict[str, tuple[int, int | None]] = {}
    for amount in amounts:
        least = max(_offers(card, kind) * kind.takes[amount] for kind in card.types)
        below = min((_offers(card, kind) + 1) * kind.takes[amount] for kind in card.types)
        found[amount] = least, below if len(amounts) == 1 else None
        if len(amounts) == 1 and least >= below:
            return None
    return found


def _left_of_stock(card: VgpuCard, kind: VgpuType, request: Request) -> Count:
    stock, types = _stock(card) or {}, {each.id: each for each in card.types}
    own = request.get(kind.id, 0)
    at_most = _offers(card, kind) - own
    fits = []
    for amount, (least, below) in stock.items():
        taken = sum(types[other].takes[amount] * number for other, number in request.items() if other in types)
        each = kind.takes[amount]
        fits.append((least - taken) // each)
        if below is not None:
            at_most = min(at_most, -((taken - below) // each) - 1)
    at_most = max(0, at_most)
    at_least = at_most if own == sum(request.values()) else max(0, min(at_most, *fits) if fits else 0)
    return Count(at_least, at_most)
