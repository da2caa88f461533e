"""Which card, which instance, which types a person means. May not do input or output."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from vfioctl.errors import BadSpec, UnknownDevice
from vfioctl.model.vgpu import Vgpu, VgpuCard, Vgpus, VgpuType

_SHORT = re.compile(r"[0-9a-fA-F]{1,2}:[0-9a-fA-F]{1,2}\.[0-7]", re.ASCII)
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
        raise UnknownDevice(f"there is no slice {word[:80]!r} here", hint="vfioctl vgpu list shows those that are")
    if len(chosen) > 1:
        several = ", ".join(f"{vgpu.id} on {vgpu.parent}" for vgpu in chosen[:4])
        raise BadSpec(f"{word[:80]!r} means several slices: {several}", hint="write more of it")
    return chosen[0]


def long_address(word: str) -> str:
    """`0000:08:00.0` for `8:00.0` too; any other word as it is."""
    if not _SHORT.fullmatch(word):
        return word
    bus, _, rest = word.lower().partition(":")
    device, _, function = rest.partition(".")
    return f"0000:{bus:0>2}:{device:0>2}.{function}"


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
