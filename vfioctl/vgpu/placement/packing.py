"""How many vGPUs go on each card, by each strategy. Pure arithmetic; what of them is said to a person is elsewhere.

Binpack is exact. What a split is worth is a sum over its cards, so the best one for all cards is made of the best ones
for fewer: a table by card and number finds it, where trying all splits of 64 vGPUs on eight cards would never end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from vfioctl.vgpu.capacity import after
from vfioctl.vgpu.model.strategy import Strategy
from vfioctl.vgpu.model.vgpu import NONE, Forecast, Sharing, SizeMode, VgpuCard, VgpuType
from vfioctl.vgpu.placement.candidates import Candidate, bulk, gauges, most

_DIGIT = 64
Split = tuple[int, ...]
"""By candidate, how many it takes."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one card takes of them, which may be none."""

    card: VgpuCard
    kind: VgpuType
    number: int
    of: Candidate
    forecast: Forecast
    """What remains of the card then."""

    @property
    def parents(self) -> tuple[str, ...]:
        """Where each of them is made."""
        return tuple(islice((slot.parent for slot in self.of.slots for _ in range(slot.room)), self.number))

    @property
    def is_read(self) -> bool:
        """Whether all their places told how many they offer."""
        return self.number <= self.of.read_room

    @property
    def is_certain(self) -> bool:
        """Whether they certainly fit. Each place speaks for itself alone, except where all is known of the card."""
        is_known = self.card.size_mode is SizeMode.SAME or len(set(self.parents)) < 2
        return not self.number or (self.is_read and is_known and self.forecast.certain)


def shared_out(candidates: Sequence[Candidate], count: int, strategy: Strategy) -> tuple[Share, ...]:
    """What each candidate takes of `count`. All of them together must have the room."""
    split = {Strategy.BINPACK: _packed, Strategy.SPREAD: _spread, Strategy.NUMA: _by_node}[strategy]
    return tuple(
        Share(each.card, each.kind, number, each, after(each.card, {each.kind.id: number}))
        for each, number in zip(candidates, split(candidates, count), strict=True)
    )


def _spread(candidates: Sequence[Candidate], count: int) -> Split:
    """One at a time: to the card with the fewest vGPUs, of those to the one with most room."""
    numbers = [0] * len(candidates)

    def burden(index: int) -> tuple[bool, int, int, int]:
        each, number = candidates[index], numbers[index]
        return number >= each.read_room, each.vgpus + number, number - each.room, index

    for _ in range(count):
        numbers[min((i for i, each in enumerate(candidates) if numbers[i] < each.room), key=burden)] += 1
    return tuple(numbers)


def _by_node(candidates: Sequence[Candidate], count: int) -> Split:
    """The largest nodes until one can take all that is left; of those that can, the one with least to spare."""
    nodes: dict[int | None, list[int]] = {}
    for index, each in enumerate(candidates):
        nodes.setdefault(each.card.numa_node, []).append(index)
    numbers = [0] * len(candidates)

    def fit(node: int | None) -> tuple[bool, bool, int, bool, int]:
        room, read = _rooms(candidates, nodes[node])
        return read < left, room < left, room if room >= left else -room, node is None, node or 0

    left = count
    while left:
        chosen = nodes.pop(min(nodes, key=fit))
        here = [candidates[index] for index in chosen]
        taken = min(left, sum(each.room for each in here))
        for index, number in zip(chosen, _packed(here, taken), strict=True):
            numbers[index] = number
        left -= taken
    return tuple(numbers)


def _rooms(candidates: Sequence[Candidate], indices: Sequence[int]) -> tuple[int, int]:
    return sum(candidates[i].room for i in indices), sum(candidates[i].read_room for i in indices)


# -- binpack ---------------------------------------------------------------------------------------------


def _packed(candidates: Sequence[Candidate], count: int) -> Split:
    """The split of most worth, of equals the one with most on the first cards."""
    with_room = [each.room > 0 for each in candidates]
    if sum(with_room) == 1:
        return tuple(count if has_room else 0 for has_room in with_room)
    sizes = sorted({size for each in candidates for size in gauges(each.card)}, reverse=True)
    best: dict[int, tuple[int, Split]] = {0: (0, ())}
    known: list[tuple[Candidate, list[int]]] = []
    for each in candidates:
        like = _nameless(each)
        worths = next((worths for twin, worths in known if twin == like), [])
        if not worths:
            worths = [_number(worth) for worth in _worths(each, min(count, each.room), sizes)]
            known.append((like, worths))
        longer: dict[int, tuple[int, Split]] = {}
        for taken, (worth, numbers) in best.items():
            for number, more in enumerate(worths[: count - taken + 1]):
                found = worth + more, (*numbers, number)
                if taken + number not in longer or found > longer[taken + number]:
                    longer[taken + number] = found
        best = longer
    return best[count][1]


def _nameless(each: Candidate) -> Candidate:
    """What twins in the same state have in common, so that each state is forecast once."""
    parents = tuple(replace(parent, name="") for parent in each.card.parents)
    slots = tuple(replace(slot, parent="") for slot in each.slots)
    return Candidate(replace(each.card, id="", numa_node=None, parents=parents), each.kind, slots)


def _number(worth: Sequence[int]) -> int:
    """One number, which adds and compares as the whole sequence does, its first part before the others."""
    total = 0
    for part in worth:
        total = (total << _DIGIT) + part
    return total


def _worths(each: Candidate, highest: int, sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """What it is worth to have 0, 1, ... `highest` on a card: the more the better, by each part before the next.

    An empty card counts for more than any forecast of it: it can still become a card of any size, where the kernel
    does not tell that one size shuts out the others. A stock hides nothing of that kind. How many of the type's own
    size are left for certain is no matter: it is as many less wherever they are made, and only said of some cards.
    """
    card, own = _measured(each), bulk(each.kind)
    measures = {**gauges(each.card), own: each.kind}
    is_empty, is_stock = not each.vgpus, each.card.sharing is Sharing.POOL
    for number in range(highest + 1):
        left = after(card, {each.kind.id: number}).available
        counts = {size: left[measures[size].id] if size in measures else NONE for size in sizes}
        opened = -int(is_empty and number > 0)
        yield (
            -max(0, number - each.read_room),
            0 if is_stock else opened,
            *(part for size in sizes for part in (most(counts[size]), 0 if size == own else counts[size].at_least)),
            number if each.alike else 0,
            opened,
            -int(number > 0),
        )


def _measured(each: Candidate) -> VgpuCard:
    """The card as it is measured, with as few types as tell the same: forecasts are what takes the time.

    Where nobody says how much memory it has, it is the most that its types divide: to compare by, never to refuse.
    """
    card = each.card
    if card.memory_bytes is None:
        divided = [(kind.framebuffer_bytes or 0) * (kind.max_instances or 0) for kind in card.types]
        card = replace(card, memory_bytes=max(divided))
    if card.sharing is not Sharing.SIZES or any(parent.unknown for parent in card.parents):
        return card
    telling = {each.kind.id, *(gauge.id for gauge in gauges(card).values())}
    return replace(card, types=tuple(kind for kind in card.types if kind.id in telling or kind.existing))
