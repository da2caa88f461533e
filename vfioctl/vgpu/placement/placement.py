"""Chooses the cards and parents for new vGPUs, all or none, and explains the choice. Pure. If another process takes a
parent meanwhile, creating the vGPU fails; the caller then asks for a placement that excludes that parent."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from vfioctl.errors import BadSpec, NoCapacity, some_of
from vfioctl.vgpu.model.lookup import cards_called, long_address
from vfioctl.vgpu.model.vgpu import Count, Dialect, Sharing, Strategy, VgpuCard, Vgpus, VgpuType
from vfioctl.vgpu.placement.candidates import Candidate, bulk, candidate
from vfioctl.vgpu.placement.packing import Share, shared_out


@dataclass(frozen=True, slots=True)
class Place:
    """Where to create one vGPU: the ids of its card and type, and the name of its parent."""

    card: str
    parent: str
    type: str


@dataclass(frozen=True, slots=True)
class Placement:
    """Where to create all vGPUs, in order."""

    places: tuple[Place, ...]
    why: tuple[str, ...]
    """Sentences that explain why these cards were chosen, and not others."""
    certain: bool
    """Whether all certainly fit if nobody else creates vGPUs. False: they may fit, but this is not known."""


def placed(
    cards: Sequence[VgpuCard],
    word: str,
    count: int,
    *,
    parent: str | None = None,
    numa: int | None = None,
    strategy: Strategy = Strategy.BINPACK,
    exclude: Collection[str] = (),
) -> Placement:
    """Places for `count` vGPUs of the type with the id, name or profile `word`. `parent`: only this card or VF; `numa`:
    only cards of this NUMA node; `exclude`: names of parents to avoid. Raises BadSpec, UnknownDevice, NoCapacity."""
    if count < 1:
        raise BadSpec(f"{count} vGPUs cannot be created", hint="write a number from 1 on")
    here = cards if parent is None else cards_called(Vgpus(tuple(cards)), parent)
    matching = _without_plain_vfs(_meant(here, word, is_named=parent is not None), count)
    near = _on_node(matching, numa)
    name = None if parent is None or long_address(parent) in {card.id for card, _ in near} else long_address(parent)
    candidates = [candidate(card, kind, count, only=name, exclude=exclude) for card, kind in near]
    if sum(candidate.room for candidate in candidates) < count:
        hint = _room_elsewhere([pair for pair in matching if pair not in near], count, exclude) or _vfs_off(cards)
        raise _no_room(candidates, count, name, hint)
    shares = shared_out(candidates, count, strategy)
    places = (Place(share.card.id, name, share.kind.id) for share in shares for name in share.parents)
    return Placement(tuple(places), reasons(shares, strategy), all(share.is_certain for share in shares))


_Found = Sequence[tuple[VgpuCard, VgpuType]]


def _meant(cards: Sequence[VgpuCard], word: str, *, is_named: bool) -> _Found:
    """The type on each card that has it, in address order. A word that is an id on any card is taken as an id."""
    matching = {card.id: (card, card.called(word)) for card in sorted(cards, key=lambda card: (len(card.id), card.id))}
    is_id = any(kind.id == word for _, kinds in matching.values() for kind in kinds)
    meant = {
        name: (card, [kind for kind in kinds if kind.id == word or not is_id])
        for name, (card, kinds) in matching.items()
    }
    for name, (_, kinds) in meant.items():
        if len(kinds) > 1:
            several = some_of(kind.id for kind in kinds)
            raise BadSpec(f"{word[:80]!r} matches several types on {name}: {several}", hint="name the type by its id")
    chosen = [(card, kinds[0]) for card, kinds in meant.values() if kinds]
    if not chosen:
        raise _no_such_type(cards, word, is_named=is_named)
    return chosen


def _no_such_type(cards: Sequence[VgpuCard], word: str, *, is_named: bool) -> BadSpec:
    known = dict.fromkeys(
        kind.profile or kind.id for card in cards for kind in card.types if card.sharing is not Sharing.VFS
    )
    hint = f"there are {some_of(known, most=20)}" if known else "vfioctl vgpu types lists them"
    lack = f"{cards[0].id} has no type" if is_named else "no card has a type"
    return BadSpec(f"{lack} {word[:80]!r}", hint=_vfs_off(cards) or hint)


def _vfs_off(cards: Sequence[VgpuCard]) -> str:
    """A hint to enable the VFs of an NVIDIA card, whose driver shows types on VFs only; empty if not needed."""
    for card in cards:
        is_bare = not any(parent.instances for parent in card.parents)
        if card.dialect is Dialect.SRIOV and card.driver == "nvidia" and is_bare:
            return f"the VFs of {card.id} are off: vfioctl sriov set {card.id} all"
    return ""


def _without_plain_vfs(matching: _Found, count: int) -> _Found:
    singly = [pair for pair in matching if pair[0].sharing is not Sharing.VFS]
    if not singly:
        by_gim = all(card.driver == "gim" for card, _ in matching)
        raise BadSpec(
            "VFs are created together",
            hint="gim creates its VFs when it is loaded: its parameter vf_num says how many"
            if by_gim
            else "set the number of VFs of a card",
            next_command="" if by_gim or len(matching) > 1 else f"vfioctl sriov set {matching[0][0].id} {count}",
        )
    return singly


def _on_node(matching: _Found, numa: int | None) -> _Found:
    near = [pair for pair in matching if numa is None or pair[0].numa_node == numa]
    if not near:
        nodes = ", ".join(dict.fromkeys(node_named(card.numa_node) for card, _ in matching))
        raise BadSpec(f"no card with {type_named(matching[0][1])} is on NUMA node {numa}", hint=f"they are on {nodes}")
    return near


def _no_room(candidates: Sequence[Candidate], count: int, place: str | None, hint: str) -> NoCapacity:
    hint = hint or "vfioctl vgpu types shows what there is room for"
    left = {candidate.card.id if place is None else place: candidate.room for candidate in candidates}
    most, kind = sum(left.values()), type_named(candidates[0].kind)
    wanted = f"{count} of {kind}: {f'at most {most}' if most else 'none'}"
    facts = {"fits": most, "left": left}
    if len(left) == 1:
        return NoCapacity(f"{next(iter(left))} has no room for {wanted}", hint=hint, facts=facts)
    each_has = ", ".join(f"{number} on {card}" for card, number in left.items())
    return NoCapacity(f"there is no room for {wanted}{f' ({each_has})' if most else ''}", hint=hint, facts=facts)


def _room_elsewhere(matching: _Found, count: int, exclude: Collection[str]) -> str:
    rooms: dict[int | None, int] = {}
    for card, kind in matching:
        room = candidate(card, kind, count, exclude=exclude).room
        rooms[card.numa_node] = rooms.get(card.numa_node, 0) + room
    others = ", ".join(f"{room} on {node_named(node)}" for node, room in rooms.items() if room)
    return f"elsewhere there is room for {others}" if others else ""


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
    kind = max((kind for kind in card.types if kind.available.at_most != 0), key=bulk)
    most = kind.available.at_most
    return type_named(kind) if most is None else f"{most} {type_named(kind)}"


def _doubt(share: Share) -> str:
    if not share.is_read:
        return f"{share.card.id}: how many {type_named(share.kind)} it has room for could not be read everywhere"
    least = min(share.number, max(slot.room for slot in share.of.slots))
    fit = "fits" if least == 1 else "fit"
    return f"{share.card.id}: only {least} of {share.number} certainly {fit}; the others show when they are created"
