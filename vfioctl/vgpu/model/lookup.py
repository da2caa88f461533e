"""Resolves the words of a request to cards, vGPUs and types, and to the owner of a vGPU. May not do input or output."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from vfioctl.errors import BadSpec, UnknownDevice, some_of
from vfioctl.kernel.protocol import PCI_ADDRESS
from vfioctl.units import UUID
from vfioctl.vgpu.model.vgpu import OURS, Created, Dialect, Sharing, Vgpu, VgpuCard, Vgpus, VgpuState, VgpuType

_SHORT = re.compile(r"[0-9a-fA-F]{1,2}:[0-9a-fA-F]{1,2}\.[0-7]", re.ASCII)
_REMOVING = "/remove "  # the sysfs file that removes a mediated device
_CLEARING = re.compile(r"'0' to \S+/current_vgpu_type\b")  # the write that removes the vGPU of a VF
NOTHING: Mapping[str, str] = {}
_PLAIN = (Dialect.SRIOV, Dialect.XE)
_MOST = 65_535


def cards_called(vgpus: Vgpus, word: str | None) -> tuple[VgpuCard, ...]:
    """The card with this address or name, or with a VF of this address; all cards for None. Raises UnknownDevice."""
    if word is None:
        return vgpus.cards
    name = long_address(word)
    chosen = tuple(card for card in vgpus.cards if card.id == name or any(p.name == name for p in card.parents))
    if not chosen:
        known = some_of((card.id for card in vgpus.cards), most=8)
        hint = f"those are {known}" if known else "no card here offers vGPUs"
        raise UnknownDevice(f"{word[:80]} is no card that offers vGPUs", hint=hint)
    return chosen


def instance_called(vgpus: Vgpus, word: str) -> Vgpu:
    """The vGPU with this address, UUID, or unique prefix of four characters or more. Raises UnknownDevice, BadSpec."""
    name = long_address(word.lower())
    begun = [vgpu for vgpu in vgpus.instances if vgpu.id.startswith(name)]
    chosen = [vgpu for vgpu in begun if vgpu.id == name] or (begun if len(name) >= 4 else [])
    if not chosen:
        raise UnknownDevice(f"there is no vGPU {word[:80]!r} here", hint="vfioctl vgpu list shows those that are")
    if len(chosen) > 1:
        several = some_of(f"{vgpu.id} on {vgpu.parent}" for vgpu in chosen)
        raise BadSpec(f"{word[:80]!r} matches several vGPUs:  {several}", hint="give more characters of it")
    return chosen[0]


def is_whole(word: str) -> bool:
    """Whether `word` is a complete name of a vGPU: a full UUID, or an address with its domain."""
    return bool(UUID.fullmatch(word) or PCI_ADDRESS.fullmatch(word.lower()))


def long_address(word: str) -> str:
    """The full address `0000:08:00.0` for a short one such as `8:00.0`; any other word unchanged."""
    if not _SHORT.fullmatch(word):
        return word
    bus, _, rest = word.lower().partition(":")
    device, _, function = rest.partition(".")
    return f"0000:{bus:0>2}:{device:0>2}.{function}"


def with_owners(found: Vgpus, created: Mapping[str, Created], wedged: Mapping[str, str] = NOTHING) -> Vgpus:
    """The vGPUs with their owner: vfioctl for those that its ledger has with the same parent and type. `wedged`: by
    device, the write that never returned. A type that the kernel hides is taken from the ledger; a vGPU that it does
    not show at all is added, because it may still use its share of the card."""
    homes = {parent.name: card.id for card in found.cards for parent in card.parents}
    created = {name: replace(m, card=homes.get(m.place.partition("/")[0], m.card)) for name, m in created.items()}
    types = {(card.id, kind.id): kind for card in found.cards for kind in card.types}
    vfs = Counter(vgpu.card for vgpu in found.instances if vgpu.dialect in _PLAIN)
    created = {name: m for name, m in created.items() if name not in vfs or m.place == str(vfs[name])}
    instances = [_owned(vgpu, created, types) for vgpu in found.instances]
    seen = {vgpu.id for vgpu in instances}
    vgpus = {name for name, record in created.items() if "/" in record.place}  # the other entries are counts of VFs
    hidden = ((created[name], why) for name, why in wedged.items() if name in vgpus - seen)
    instances += (_unanswering(record, types, why) for record, why in hidden)
    return replace(found, instances=tuple(instances))


Types = Mapping[tuple[str, str], VgpuType]


def _owned(vgpu: Vgpu, created: Mapping[str, Created], types: Types) -> Vgpu:
    plain = vgpu.dialect in _PLAIN
    known = created.get(vgpu.card if plain else vgpu.id)  # the ledger has plain VFs under their PF
    if known is None:
        return vgpu
    if vgpu.state is VgpuState.ZOMBIE and not vgpu.type:
        return replace(_hidden(known, types, VgpuState.ZOMBIE), iommu_group=vgpu.iommu_group, unknown=vgpu.unknown)
    ours = plain or known.place == f"{vgpu.parent}/{vgpu.type}"
    return replace(vgpu, owner=OURS) if ours else vgpu


def _unanswering(created: Created, types: Types, why: str) -> Vgpu:
    """The vGPU that is being created or removed. `why`: the write that never returned."""
    if _REMOVING in why:
        return _hidden(created, types, VgpuState.ZOMBIE)
    change = "removed" if _CLEARING.search(why) else "created"
    unanswering = _hidden(created, types, VgpuState.WEDGED)
    return replace(unanswering, unknown={"state": f"it is being {change}, and the write never returned"})


def _hidden(created: Created, types: Types, state: VgpuState) -> Vgpu:
    parent, _, kind = created.place.partition("/")
    known = types.get((created.card, kind), VgpuType(id=kind))
    return Vgpu(
        id=created.id,
        dialect=Dialect.VENDOR if parent == created.id else Dialect.MDEV,
        card=created.card,
        parent=parent,
        state=state,
        type=kind,
        type_name=known.name,
        profile=known.profile,
        owner=OURS,
    )


def why_none(card: VgpuCard, word: str, *, numa: int | None = None) -> str:
    """Why no vGPU of the type `word` can be created on a card; empty if one can."""
    if numa is not None and card.numa_node != numa:
        return "it is on no NUMA node" if card.numa_node is None else f"it is on NUMA node {card.numa_node}"
    kinds = card.called(word)
    if not kinds:
        is_bare = card.dialect is Dialect.SRIOV and not any(parent.instances for parent in card.parents)
        return "its VFs are off" if is_bare else f"it has no vGPU type {word}"
    if card.sharing is Sharing.VFS:
        return "its VFs are created together"
    return f"it has no room for {kinds[0].profile or kinds[0].id}" if kinds[0].available.at_most == 0 else ""


def requested(cards: Sequence[VgpuCard], words: Iterable[str]) -> Mapping[str, Mapping[str, int]]:
    """The number of vGPUs that the words `TYPE` and `TYPE=N` ask for, by card and type id. Raises BadSpec."""
    asked: dict[str, dict[str, int]] = {}
    for word in words:
        name, count = type_and_number(word)
        card, kind = _one(cards, name)
        of_card = asked.setdefault(card.id, {})
        of_card[kind.id] = of_card.get(kind.id, 0) + count
    return asked


def type_and_number(word: str) -> tuple[str, int]:
    """The type and the number of `TYPE` or `TYPE=N`. Raises BadSpec."""
    name, equals, number = word.rpartition("=")
    if not equals:
        return word, 1
    if not re.fullmatch(r"[0-9]{1,5}", number, re.ASCII) or not 1 <= int(number) <= _MOST:
        raise BadSpec(f"not a type with a number: {word[:80]!r}", hint="write it as TYPE or TYPE=2")
    return name, int(number)


def _one(cards: Sequence[VgpuCard], name: str) -> tuple[VgpuCard, VgpuType]:
    matches = [(card, kind) for card in cards for kind in card.called(name)]
    if not matches:
        known = dict.fromkeys(kind.profile or kind.id for card in cards for kind in card.types)
        hint = f"there are {some_of(known, most=20)}" if known else "vfioctl vgpu types lists them"
        raise BadSpec(f"no card has a type {name[:80]!r}", hint=hint)
    if len(matches) > 1:
        several = some_of(f"{kind.id} on {card.id}" for card, kind in matches)
        raise BadSpec(f"{name[:80]!r} matches several types:  {several}", hint="name the card, or the type by its id")
    return matches[0]
