"""Plans the creation of vGPUs through any kernel interface. Pure; refuses before anything is changed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from vfioctl.core.change import Change, CheckRequest, Draft, Fact
from vfioctl.errors import BadSpec, DeviceInUse, NoCapacity
from vfioctl.inventory.model.values import PciAddress
from vfioctl.units import Uuid
from vfioctl.vgpu.model.intents import CreateVgpuIntent
from vfioctl.vgpu.model.kinds import CHECK, MDEV, PARAMETER, VGPU_TYPE, own_folder, type_file
from vfioctl.vgpu.model.lookup import long_address
from vfioctl.vgpu.model.persistent import definition_file, definition_text, identity_in, vgpu_text
from vfioctl.vgpu.model.report import type_name_facts
from vfioctl.vgpu.model.vgpu import Dialect, VgpuCard, Vgpus, VgpuState
from vfioctl.vgpu.placement.placement import Place, Placement, placed
from vfioctl.vgpu.placement.reserved import Reserved, kept_for, with_room_kept, without_claimed
from vfioctl.vgpu.resources.files import Parameter, definition_change

LIST = "vgpu_params"
PLACEMENT, PARAMETERS = "nvidia/placement_id", f"nvidia/{LIST}"
Facts = Mapping[str, Fact]
Texts = Mapping[str, str]
"""The current text of each definition file that the plan may change, by path."""


def choose(
    vgpus: Vgpus, intent: CreateVgpuIntent, reserved: Sequence[Reserved] = (), claimed: Sequence[Reserved] = ()
) -> tuple[Placement, tuple[Uuid | PciAddress, ...]]:
    """The parents of the new vGPUs, and the UUID or address of each. Raises NoCapacity, BadSpec, UnknownDevice.
    `reserved`: vGPUs that are created at boot, whose room is taken only if there is no other. `claimed`: vGPUs that do
    not exist now and belong to somebody, whose room is never taken."""
    chosen = _placed_beside_claimed(vgpus.cards, intent, reserved, claimed)
    mdev = {card.id for card in vgpus.cards if card.dialect is Dialect.MDEV}
    if sum(place.card in mdev for place in chosen.places) > len(intent.uuids):
        number = len(intent.uuids)
        raise BadSpec(f"{intent.count} vGPUs need as many UUIDs, and there are {number}", hint="one for each")
    uuids = iter(intent.uuids)
    return chosen, tuple(next(uuids) if p.card in mdev else PciAddress(p.parent) for p in chosen.places)


def _placed_beside_claimed(
    cards: Sequence[VgpuCard], intent: CreateVgpuIntent, reserved: Sequence[Reserved], claimed: Sequence[Reserved]
) -> Placement:
    named = {*intent.uuids, long_address(intent.parent or "")}
    claimed = [vgpu for vgpu in claimed if vgpu.name not in named]
    others = [vgpu for vgpu in reserved if vgpu.name not in named.union(vgpu.name for vgpu in claimed)]
    kept = kept_for(cards, intent.type, claimed)
    if not kept:
        return _placed_beside_persistent(cards, intent, others)
    try:
        chosen = _placed_beside_persistent(without_claimed(cards, claimed), intent, others)
    except NoCapacity as full:
        raise NoCapacity(
            f"{full.message}; room is reserved for {kept}",
            hint="what is claimed stays reserved until it is released, also while it does not exist",
            next_command=next(vgpu.release for vgpu in claimed),
            facts={**full.facts, "reserved": [vgpu.name for vgpu in claimed]},
        ) from None
    return replace(chosen, why=(*chosen.why, f"room is kept for {kept}"))


def _placed_beside_persistent(
    cards: Sequence[VgpuCard], intent: CreateVgpuIntent, others: Sequence[Reserved]
) -> Placement:
    kept = kept_for(cards, intent.type, others)
    if not kept:
        return _placed(cards, intent)
    try:
        chosen, why = _placed(with_room_kept(cards, others), intent), f"room is kept for {kept}"
    except NoCapacity:
        chosen, why = _placed(cards, intent), f"this takes the room of {kept}"
    return replace(chosen, why=(*chosen.why, f"{why}, which definitions create at boot"))


def _placed(cards: Sequence[VgpuCard], intent: CreateVgpuIntent) -> Placement:
    return placed(
        cards,
        intent.type,
        intent.count,
        parent=intent.parent,
        numa=intent.numa,
        strategy=intent.placement,
        exclude=intent.exclude,
    )


def plan_create(
    vgpus: Vgpus,
    intent: CreateVgpuIntent,
    chosen: Placement,
    names: Sequence[Uuid | PciAddress],
    facts: Facts,
    texts: Texts,
) -> Draft:
    """The draft that creates the vGPUs on the chosen parents: all, or none. `names`: the UUID or address of each vGPU.
    `facts`: of the parents that are PCI functions. `texts`: see `Texts`. Raises BadSpec, DeviceInUse."""
    cards = {card.id: card for card in vgpus.cards}
    changes: list[Change] = []
    for place, name in zip(chosen.places, names, strict=True):
        changes += _created(cards[place.card], place, name, intent, vgpus, facts, texts)
    concerned = tuple(dict.fromkeys(place.card for place in chosen.places))
    functions = {*concerned, *(place.parent for place in chosen.places)}
    unknown = (f"unknown: {w.subject}: {w.text}" for w in vgpus.warnings if w.subject in ("NVML", *concerned))
    about_parameters = ("parameters are written before any guest has the vGPU, and go with it",)
    return Draft(
        intent=intent,
        facts=(
            *(fact for address, fact in facts.items() if address in functions),
            *type_name_facts(cards[card] for card in concerned),
        ),
        changes=tuple(changes),
        checks=(CheckRequest(kind=CHECK, subjects=concerned),),
        notes=(*chosen.why, *(about_parameters if intent.parameters else ()), *unknown),
    )


def _created(
    card: VgpuCard,
    place: Place,
    subject: Uuid | PciAddress,
    intent: CreateVgpuIntent,
    vgpus: Vgpus,
    facts: Facts,
    texts: Texts,
) -> Iterator[Change]:
    wanted = intent.parameters
    if isinstance(subject, Uuid):
        wanted = wanted or _defined(subject, place, vgpus)
        value = f"{place.parent}/{place.type}"
        yield Change(kind=MDEV, name=subject, subject=subject, before="", after=value)
    else:
        yield Change(kind=VGPU_TYPE, name=type_file(subject), subject=subject, before="0", after=place.type)
    parameters = dict(_parameters(card, place.type, wanted, intent.count))
    yield from (_parameter(subject, name, value) for name, value in parameters.items())
    if intent.persistent:
        yield _definition(card, place, subject, parameters, identity_in(facts, card.id), texts)


def _defined(uuid: Uuid, place: Place, vgpus: Vgpus) -> tuple[tuple[str, str], ...]:
    """The parameters in mdevctl's definition of this UUID, if any. Raises DeviceInUse when the vGPU exists."""
    attributes: tuple[tuple[str, str], ...] = ()
    for vgpu in (vgpu for vgpu in vgpus.instances if vgpu.id == uuid):
        if vgpu.state is not VgpuState.DEFINED:
            raise DeviceInUse(
                f"there is a vGPU {uuid} already, on {vgpu.parent}",
                hint="choose another --uuid; vfioctl persist import has one that exists created at boot",
            )
        if (vgpu.parent, vgpu.type) != (place.parent, place.type):
            raise DeviceInUse(
                f"{uuid} is defined already, as {vgpu.type} on {vgpu.parent}",
                hint="choose another --uuid, or this type and parent",
            )
        attributes = vgpu.definition.attributes if vgpu.definition else ()
    return attributes


def _definition(
    card: VgpuCard,
    place: Place,
    subject: Uuid | PciAddress,
    parameters: Mapping[str, str],
    identity: str,
    texts: Texts,
) -> Change:
    file = definition_file(subject, place.parent)
    before = texts.get(file, "")
    if isinstance(subject, PciAddress):
        kind = next(kind for kind in card.types if kind.id == place.type)
        return definition_change(file, subject, before, vgpu_text(card.id, subject, kind, parameters, identity))
    text = definition_text(place.type, parameters)
    if before not in ("", text):  # other definitions are vfioctl's
        raise DeviceInUse(f"{file} says something else already", hint="remove it first, or leave out --persistent")
    return definition_change(file, subject, before, text)


def _parameters(card: VgpuCard, kind: str, pairs: Iterable[tuple[str, str]], count: int) -> Iterator[tuple[str, str]]:
    """The parameter files to write, and their values. NVIDIA's `vgpu_params` is a list: `name=value, name=value`."""
    nvidia = card.dialect is Dialect.VENDOR or kind.startswith("nvidia-")
    listed = []
    pairs = tuple(pairs)
    names = [name.removeprefix("nvidia/") for name, _ in pairs]
    if len(set(names)) < len(names) or (LIST in names and {*names} - {LIST, "placement_id"}):
        raise BadSpec("a parameter is given twice", hint="give each once")
    if count > 1 and "placement_id" in names:
        raise BadSpec("a placement_id is for one vGPU", hint="leave out --count")
    for name, value in pairs:
        if "/" in name:
            yield name, value
        elif not nvidia:
            raise BadSpec(f"{name!r} is no parameter of a vGPU of {card.id}", hint="name a file: folder/file=value")
        elif name == "placement_id":
            yield PLACEMENT, value
        elif "," in value or not re.fullmatch(r"[A-Za-z0-9_]{1,64}", name, re.ASCII):
            raise BadSpec(f"not a parameter: {f'{name}={value}'[:80]!r}", hint="give each as --param name=value")
        else:
            listed.append(f"{name}={value}")
    if listed:
        yield PARAMETERS, ", ".join(listed)


def _parameter(subject: str, name: str, value: str) -> Change:
    file = f"{own_folder(subject)}/{name}"
    try:
        change = Change(kind=PARAMETER, name=file, subject=subject, before="", after=value)
        Parameter().validate(change)
    except ValueError:
        raise BadSpec(
            f"not a parameter of a vGPU: {f'{name}={value}'[:80]!r}",
            hint="name one for vgpu_params, or a file of the driver's own folder, and a plain value",
        ) from None
    return change
