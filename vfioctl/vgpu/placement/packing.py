"""Computes how many vGPUs each card takes, for each strategy. Pure; `reasons` explains the result. Binpack finds the
optimum by dynamic programming by card and number: a score is a sum over cards, so the best split consists of best
splits over fewer cards. Trying all splits of 64 vGPUs on eight cards would take too long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from vfioctl.vgpu.model.vgpu import NONE, Forecast, Sharing, SizeMode, Strategy, VgpuCard, VgpuType
from vfioctl.vgpu.placement.candidates import Candidate, bulk, gauges, most
from vfioctl.vgpu.placement.capacity import after

_DIGIT = 64
Split = tuple[int, ...]
"""The number of vGPUs that each candidate takes."""


@dataclass(frozen=True, slots=True)
class Share:
    """The vGPUs that one card takes; `number` may be 0."""

    card: VgpuCard
    kind: VgpuType
    number: int
    of: Candidate
    forecast: Forecast
    """The capacity of the card afterwards."""

    @property
    def parents(self) -> tuple[str, ...]:
        """The parent of each vGPU."""
        return tuple(islice((slot.parent for slot in self.of.slots for _ in range(slot.room)), self.number))

    @property
    def is_read(self) -> bool:
        """Whether the offers of all these parents could be read."""
        return self.number <= self.of.read_room

    @property
    def is_certain(self) -> bool:
        """Whether they certainly fit. Offers are valid for one parent only, except in same-size mode."""
        is_known = self.card.size_mode is SizeMode.SAME or len(set(self.parents)) < 2
        return not self.number or (self.is_read and is_known and self.forecast.certain)


def shared_out(candidates: Sequence[Candidate], count: int, strategy: Strategy) -> tuple[Share, ...]:
    """Split `count` vGPUs among the candidates, which must have the room together."""
    split = {Strategy.BINPACK: _packed, Strategy.SPREAD: _spread, Strategy.NUMA: _by_node}[strategy]
    return tuple(
        Share(candidate.card, candidate.kind, number, candidate, after(candidate.card, {candidate.kind.id: number}))
        for candidate, number in zip(candidates, split(candidates, count), strict=True)
    )


def _spread(candidates: Sequence[Candidate], count: int) -> Split:
    """Place one vGPU at a time on the card with the fewest vGPUs; among equals, the one with most room."""
    numbers = [0] * len(candidates)

    def load(index: int) -> tuple[bool, int, int, int]:
        candidate, number = candidates[index], numbers[index]
        return number >= candidate.read_room, candidate.vgpus + number, number - candidate.room, index

    for _ in range(count):
        numbers[min((i for i, candidate in enumerate(candidates) if numbers[i] < candidate.room), key=load)] += 1
    return tuple(numbers)


def _by_node(candidates: Sequence[Candidate], count: int) -> Split:
    """Fill the largest nodes until one can take the rest; then choose the one with least to spare. No node is last."""
    nodes: dict[int | None, list[int]] = {}
    for index, candidate in enumerate(candidates):
        nodes.setdefault(candidate.card.numa_node, []).append(index)
    numbers = [0] * len(candidates)

    def fit(node: int | None) -> tuple[bool, bool, bool, int, int]:
        here = [candidates[index] for index in nodes[node]]
        room, read = sum(candidate.room for candidate in here), sum(candidate.read_room for candidate in here)
        return node is None, read < left, room < left, room if room >= left else -room, node or 0

    left = count
    while left:
        chosen = nodes.pop(min(nodes, key=fit))
        here = [candidates[index] for index in chosen]
        taken = min(left, sum(candidate.room for candidate in here))
        for index, number in zip(chosen, _packed(here, taken), strict=True):
            numbers[index] = number
        left -= taken
    return tuple(numbers)


def _packed(candidates: Sequence[Candidate], count: int) -> Split:
    """The split with the best score; among equals, the one with most vGPUs on the first cards."""
    with_room = [candidate.room > 0 for candidate in candidates]
    if sum(with_room) == 1:
        return tuple(count if has_room else 0 for has_room in with_room)
    sizes = sorted({size for candidate in candidates for size in gauges(candidate.card)}, reverse=True)
    best: dict[int, tuple[int, Split]] = {0: (0, ())}
    known: list[tuple[Candidate, list[int]]] = []
    for candidate in candidates:
        like = _without_names(candidate)
        scores = next((scores for twin, scores in known if twin == like), [])
        if not scores:
            scores = [_number(score) for score in _scores(candidate, min(count, candidate.room), sizes)]
            known.append((like, scores))
        longer: dict[int, tuple[int, Split]] = {}
        for taken, (score, numbers) in best.items():
            for number, more in enumerate(scores[: count - taken + 1]):
                packed = score + more, (*numbers, number)
                if taken + number not in longer or packed > longer[taken + number]:
                    longer[taken + number] = packed
        best = longer
    return best[count][1]


def _without_names(candidate: Candidate) -> Candidate:
    """The candidate without names and addresses, so that equal cards in the same state are forecast once."""
    parents = tuple(replace(parent, name="") for parent in candidate.card.parents)
    slots = tuple(replace(slot, parent="") for slot in candidate.slots)
    return Candidate(replace(candidate.card, id="", numa_node=None, parents=parents), candidate.kind, slots)


def _number(score: Sequence[int]) -> int:
    """The parts of a score as one integer, which adds and compares like the tuple."""
    total = 0
    for part in score:
        total = (total << _DIGIT) + part
    return total


def _scores(candidate: Candidate, highest: int, sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The scores of a card with 0, 1, ... `highest` new vGPUs. Higher is better; earlier parts take precedence. Keeping
    a card empty takes precedence over forecasts, except for pools: an empty card can still take any size, and the
    kernel does not report that one size excludes the others. The lower bound for the type's own size is ignored: it
    falls by the same number on any card, and is known for some cards only."""
    card, own = _measured(candidate), bulk(candidate.kind)
    measures = {**gauges(candidate.card), own: candidate.kind}
    is_empty, is_stock = not candidate.vgpus, candidate.card.sharing is Sharing.POOL
    for number in range(highest + 1):
        left = after(card, {candidate.kind.id: number}).available
        counts = {size: left[measures[size].id] if size in measures else NONE for size in sizes}
        opened = -int(is_empty and number > 0)
        yield (
            -max(0, number - candidate.read_room),
            0 if is_stock else opened,
            *(part for size in sizes for part in (most(counts[size]), 0 if size == own else counts[size].at_least)),
            number if candidate.alike else 0,
            opened,
            -int(number > 0),
        )


def _measured(candidate: Candidate) -> VgpuCard:
    """The card for forecasts, reduced to the types that affect the score, because forecasts dominate the run time.
    Unknown memory is estimated from its types. The estimate is used to compare cards, never to refuse."""
    card = candidate.card
    if card.memory_bytes is None:
        divided = [(kind.framebuffer_bytes or 0) * (kind.max_instances or 0) for kind in card.types]
        card = replace(card, memory_bytes=max(divided))
    if card.sharing is not Sharing.SIZES or any(parent.unknown for parent in card.parents):
        return card
    telling = {candidate.kind.id, *(gauge.id for gauge in gauges(card).values())}
    return replace(card, types=tuple(kind for kind in card.types if kind.id in telling or kind.existing))
