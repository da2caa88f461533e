"""Which card, which instance, which types a person means, and whose a vGPU is. May not do input or output."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from vfioctl.errors import BadSpec, UnknownDevice
from vfioctl.vgpu.model.vgpu import OURS, Dialect, Made, Vgpu, VgpuCard, Vgpus, VgpuState, VgpuType

_SHORT = re.compile(r"[0-9a-fA-F]{1,2}:[0-9a-fA-F]{1,2}\.[0-7]", re.ASCII)
_WHOLE = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
_REMOVING = "/remove "  # of the file that makes a mediated device go
NOTHING: Mapping[str, str] = {}
_PLAIN = (Dialect.SRIOV, Dialect.XE)
_MOST = 65_535


def cards_called(found: Vgpus, word: str | None) -> tuple[VgpuCard, ...]:
    """The card of that address or name, or of a VF that it is made on; all of them for None. Raises UnknownDevice."""
    if word is None:
        return found.cards
    name = long_address(word)
    chosen = tuple(card for card in found.cards if card.id == name or any(p.name == name for p in card.parents))
    if not chosen:
        known = ", ".join(card.id for card in found.cards)
        hint = f"those are {known[:200]}" if known else "no card here can be sliced"
        raise UnknownDevice(f"{word[:80]} is nothing that can be sliced", hint=hint)
    return chosen


def instance_called(found: Vgpus, word: str) -> Vgpu:
    """The instance of that address or UUID, of which a beginning will do. Raises UnknownDevice, BadSpec."""
    name = long_address(word.lower())
    begun = [vgpu for vgpu in found.instances if vgpu.id.startswith(name)]
    chosen = [vgpu for vgpu in begun if vgpu.id == name] or (begun if len(name) >= 4 else [])
    if not chosen:
        raise UnknownDevice(f"there is no vGPU {word[:80]!r} here", hint="vfioctl vgpu list shows those that are")
    if len(chosen) > 1:
        several = ", ".join(f"{vgpu.id} on {vgpu.parent}" for vgpu in chosen[:4])
        raise BadSpec(f"{word[:80]!r} means several vGPUs: {several}", hint="write more of it")
    return chosen[0]


def is_whole(word: str) -> bool:
    """Whether it names one vGPU whatever there is: a UUID, or an address with its domain."""
    return _WHOLE.fullmatch(word.lower()) is not None


def long_address(word: str) -> str:
    """`0000:08:00.0` for `8:00.0` too; any other word as it is."""
    if not _SHORT.fullmatch(word):
        return word
    bus, _, rest = word.lower().partition(":")
    device, _, function = rest.partition(".")
    return f"0000:{bus:0>2}:{device:0>2}.{function}"


def with_owners(found: Vgpus, made: Mapping[str, Made], wedged: Mapping[str, str] = NOTHING) -> Vgpus:
    """The vGPUs with whose they are: vfioctl's are those that its ledger has as they are there.

    `wedged`: those that a write never returned from, and which. Of a vGPU that the kernel hides, the ledger tells the
    type; where it does not even show that it is there, the vGPU is added: it may still take its share.
    """
    homes = {parent.name: card.id for card in found.cards for parent in card.parents}
    made = {name: replace(m, card=homes.get(m.place.partition("/")[0], m.card)) for name, m in made.items()}
    types = {(card.id, kind.id): kind for card in found.cards for kind in card.types}
    vfs = Counter(vgpu.card for vgpu in found.instances if vgpu.dialect in _PLAIN)
    made = {name: m for name, m in made.items() if name not in vfs or m.place == str(vfs[name])}
    instances = [_owned(vgpu, made, types) for vgpu in found.instances]
    seen = {vgpu.id for vgpu in instances}
    vgpus = {name for name, each in made.items() if "/" in each.place}  # the others are counts of VFs
    hidden = ((made[name], why) for name, why in wedged.items() if name in vgpus - seen)
    instances += (_hidden(each, types, _ended_as(why)) for each, why in hidden)
    return replace(found, instances=tuple(instances))


def _ended_as(why: str) -> VgpuState:
    return VgpuState.ZOMBIE if _REMOVING in why else VgpuState.WEDGED


Types = Mapping[tuple[str, str], VgpuType]


def _owned(vgpu: Vgpu, made: Mapping[str, Made], types: Types) -> Vgpu:
    plain = vgpu.dialect in _PLAIN
    known = made.get(vgpu.card if plain else vgpu.id)  # of plain VFs their PF is known
    if known is None:
        return vgpu
    if vgpu.state is VgpuState.ZOMBIE and not vgpu.type:
        return replace(_hidden(known, types, VgpuState.ZOMBIE), iommu_group=vgpu.iommu_group, unknown=vgpu.unknown)
    ours = plain or known.place == f"{vgpu.parent}/{vgpu.type}"
    return replace(vgpu, owner=OURS) if ours else vgpu


def _hidden(made: Made, types: Types, state: VgpuState) -> Vgpu:
    parent, _, kind = made.place.partition("/")
    known = types.get((made.card, kind), VgpuType(id=kind))
    return Vgpu(
        id=made.id,
        dialect=Dialect.VENDOR if parent == made.id else Dialect.MDEV,
        card=made.card,
        parent=parent,
        state=state,
        type=kind,
        type_name=known.name,
        profile=known.profile,
        owner=OURS,
    )


def requested(cards: Sequence[VgpuCard], words: Iterable[str]) -> Mapping[str, Mapping[str, int]]:
    """By card, then by type, how many `TYPE` and `TYPE=N` ask for. Raises BadSpec."""
    asked: dict[str, dict[str, int]] = {}
    for word in words:
        name, count = _parts(word)
        card, kind = _one(cards, name)
        of_card = asked.setdefault(card.id, {})
        of_card[kind.id] = of_card.get(kind.id, 0) + count
    return asked


def _parts(word: str) -> tuple[str, int]:
    name, equals, number = word.rpartition("=")
    if not equals:
        return word, 1
    if not re.fullmatch(r"[0-9]{1,5}", number, re.ASCII) or not 1 <= int(number) <= _MOST:
        raise BadSpec(f"not a type with a number: {word[:80]!r}", hint="write it as TYPE or TYPE=2")
    return name, int(number)


def _one(cards: Sequence[VgpuCard], name: str) -> tuple[VgpuCard, VgpuType]:
    found = [(card, kind) for card in cards for kind in card.called(name)]
    if not found:
        known = dict.fromkeys(kind.profile or kind.id for card in cards for kind in card.types)
        hint = f"there are {', '.join(known)[:300]}" if known else "vfioctl vgpu types lists them"
        raise BadSpec(f"no card has a type {name[:80]!r}", hint=hint)
    if len(found) > 1:
        several = ", ".join(f"{kind.id} on {card.id}" for card, kind in found[:4])
        raise BadSpec(f"{name[:80]!r} means several types: {several}", hint="name the card, or the type by its id")
    return found[0]
