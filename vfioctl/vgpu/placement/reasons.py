"""Explains a placement in sentences: why these cards, and why not others. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vfioctl.vgpu.model.vgpu import Count, Strategy, VgpuCard, VgpuType
from vfioctl.vgpu.placement.candidates import Candidate, bulk
from vfioctl.vgpu.placement.packing import Share


def reasons(shares: Sequence[Share], strategy: Strategy) -> tuple[str, ...]:
    """Sentences about the NUMA nodes, each card, and what is uncertain."""
    count = sum(share.number for share in shares)
    return (
        *(_of_nodes(shares, count) if strategy is Strategy.NUMA else ()),
        *(_of_card(share, count, strategy) for share in shares),
        *(_doubt(share) for share in shares if not share.is_certain),
    )


def type_named(kind: VgpuType) -> str:
    """The name of a type in messages."""
    return kind.profile or kind.id


def node_named(node: int | None) -> str:
    """The name of a NUMA node in messages; None is the kernel's -1."""
    return "no NUMA node" if node is None else f"NUMA node {node}"


def _of_nodes(shares: Sequence[Share], count: int) -> Iterator[str]:
    rooms: dict[int | None, int] = {}
    for share in shares:
        rooms[share.card.numa_node] = rooms.get(share.card.numa_node, 0) + share.of.room
    used = dict.fromkeys(share.card.numa_node for share in shares if share.number)
    names = " and ".join(node_named(node) for node in used)
    if len(used) > 1:
        yield f"no NUMA node has room for all {count}: they are on {names}"
    elif len(rooms) > 1:
        room = sum(rooms[node] for node in used)
        others = ", ".join(f"{room} on {node_named(node)}" for node, room in rooms.items() if node not in used)
        yield f"all on {names}, with least to spare of those with room for all: room for {room}, {others}"


def _of_card(share: Share, count: int, strategy: Strategy) -> str:
    card, kind, existing = share.card, type_named(share.kind), _existing(share.of.vgpus)
    if share.number:
        remains = _remains(share.forecast.available[share.kind.id])
        return f"{card.id} takes {share.number} of {count} {kind}: {_state(share.of, strategy)}; {remains}"
    if not share.of.room:
        return f"{card.id} has no room for {kind}"
    if strategy is Strategy.SPREAD:
        return f"{card.id} takes none: {existing}"
    return f"{card.id} {'keeps its' if share.of.vgpus else 'stays free, with'} room for {_largest(card)}"


def _state(candidate: Candidate, strategy: Strategy) -> str:
    if not candidate.vgpus:
        return "it is empty"
    if candidate.alike and strategy is not Strategy.SPREAD:
        return f"{candidate.alike} of that size {'is' if candidate.alike == 1 else 'are'} there"
    return _existing(candidate.vgpus)


def _existing(vgpus: int) -> str:
    return f"{vgpus} {'vGPU is' if vgpus == 1 else 'vGPUs are'} there"


def _remains(count: Count) -> str:
    if count.at_most is None:
        return "how many more would fit is not known"
    if not count.at_most:
        return "no more would fit"
    return f"{'' if count.is_exact else 'at most '}{count.at_most} more would fit"


def _largest(card: VgpuCard) -> str:
    """The largest type that the card has room for, with the number."""
    fitting = [kind for kind in card.types if kind.available.at_most != 0]
    kind = max(fitting, key=bulk)
    most = kind.available.at_most
    return type_named(kind) if most is None else f"{most} {type_named(kind)}"


def _doubt(share: Share) -> str:
    if not share.is_read:
        return f"{share.card.id}: how many {type_named(share.kind)} it has room for could not be read everywhere"
    least = min(share.number, max(slot.room for slot in share.of.slots))
    fit = "fits" if least == 1 else "fit"
    return f"{share.card.id}: only {least} of {share.number} certainly {fit}; the others show when they are created"
