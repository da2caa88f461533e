"""Making and removing vGPUs, whatever interface of the kernel they have. Pure; says no before anything is touched."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from vfioctl.binding.model.circumstances import NOTHING_KNOWN, Circumstances
from vfioctl.binding.plan.steps import steps
from vfioctl.core.change import Fact, Intent, Plan, VgpuRequest
from vfioctl.core.setting import Setting, SettingKind
from vfioctl.errors import BadSpec, DeviceInUse, Foreign, UnknownDevice
from vfioctl.inventory.model.holders import HolderKind
from vfioctl.inventory.model.refusals import holding, refuse, told
from vfioctl.inventory.model.values import PciAddress, Uuid
from vfioctl.vgpu.model.persistent import definition_text, kept_file, vgpu_text
from vfioctl.vgpu.model.vgpu import OURS, Dialect, Made, Vgpu, VgpuCard, Vgpus, VgpuState
from vfioctl.vgpu.placement.placement import Place, Placement, placed

_FOLDERS = {Dialect.MDEV: "/sys/bus/mdev/devices/{}", Dialect.VENDOR: "/sys/bus/pci/devices/{}"}
_LIST = "vgpu_params"
_PLACEMENT, _PARAMETERS = "nvidia/placement_id", f"nvidia/{_LIST}"
Facts = Mapping[PciAddress, Fact]
Texts = Mapping[str, str]
"""The text of each file below /etc that a plan may be about."""


# -- making ------------------------------------------------------------------------------------------


def choose(found: Vgpus, intent: Intent) -> tuple[Placement, tuple[Uuid | PciAddress, ...]]:
    """Where the vGPUs go, and what each will be called. Raises NoCapacity, BadSpec, UnknownDevice."""
    wish = _wish(intent)
    chosen = placed(
        found.cards,
        wish.type or "",
        wish.count,
        parent=wish.parent,
        numa=wish.numa,
        strategy=wish.placement,
        exclude=wish.exclude,
    )
    mdev = {card.id for card in found.cards if card.dialect is Dialect.MDEV}
    if sum(place.card in mdev for place in chosen.places) > len(wish.uuids):
        raise BadSpec(f"{wish.count} vGPUs need as many UUIDs, and there are {len(wish.uuids)}", hint="one for each")
    uuids = iter(wish.uuids)
    return chosen, tuple(next(uuids) if p.card in mdev else PciAddress(p.parent) for p in chosen.places)


def plan_create(
    found: Vgpus, intent: Intent, chosen: Placement, names: Sequence[Uuid | PciAddress], facts: Facts, texts: Texts
) -> Plan:
    """So many vGPUs of one type, all or none, on the places chosen.

    `facts` are of those of the places that are functions. Raises BadSpec, DeviceInUse.
    """
    wish = _wish(intent)
    cards = {card.id: card for card in found.cards}
    settings: list[Setting] = []
    for place, name in zip(chosen.places, names, strict=True):
        settings += _made(cards[place.card], place, name, wish, found, texts)
    notes = [*chosen.why, *_parameter_notes(wish)]
    return _plan(
        intent,
        facts,
        tuple(settings),
        [place.parent for place in chosen.places],
        notes,
        tuple(dict.fromkeys(place.card for place in chosen.places)),
    )


def _made(
    card: VgpuCard, place: Place, subject: Uuid | PciAddress, wish: VgpuRequest, found: Vgpus, texts: Texts
) -> Iterator[Setting]:
    given = wish.parameters
    if isinstance(subject, Uuid):
        given = given or _defined(subject, place, found)
        value = f"{place.parent}/{place.type}"
        yield Setting(kind=SettingKind.MDEV, name=subject, address=subject, before="", after=value)
    else:
        file = f"/sys/bus/pci/devices/{subject}/nvidia/current_vgpu_type"
        yield Setting(kind=SettingKind.VGPU_TYPE, name=file, address=subject, before="0", after=place.type)
    parameters = dict(_parameters(card, place.type, given, wish.count))
    yield from (_parameter(card.dialect, subject, name, value) for name, value in parameters.items())
    if wish.persistent:
        yield _kept(card, place, subject, parameters, texts)


def _defined(uuid: Uuid, place: Place, found: Vgpus) -> tuple[tuple[str, str], ...]:
    """What mdevctl's definition of that vGPU has it set to, where there is one. Raises DeviceInUse for a live one."""
    given: tuple[tuple[str, str], ...] = ()
    for vgpu in (vgpu for vgpu in found.instances if vgpu.id == uuid):
        if vgpu.state is not VgpuState.DEFINED:
            raise DeviceInUse(f"there is a vGPU {uuid} already, on {vgpu.parent}", hint="choose another --uuid")
        if (vgpu.parent, vgpu.type) != (place.parent, place.type):
            raise DeviceInUse(
                f"{uuid} is defined already, as {vgpu.type} on {vgpu.parent}",
                hint="choose another --uuid, or this type and parent",
            )
        given = vgpu.definition.attributes if vgpu.definition else ()
    return given


def _kept(
    card: VgpuCard, place: Place, subject: Uuid | PciAddress, parameters: Mapping[str, str], texts: Texts
) -> Setting:
    """What has the vGPU made again at boot: mdevctl's definition, or a file of vfioctl's own."""
    file = kept_file(subject, place.parent)
    kind = next(kind for kind in card.types if kind.id == place.type)
    text = (
        definition_text(kind.id, parameters)
        if isinstance(subject, Uuid)
        else vgpu_text(card.id, subject, kind, parameters)
    )
    before = texts.get(file, "")
    if isinstance(subject, Uuid) and before not in ("", text):  # the others are vfioctl's own, and the VF is free
        raise DeviceInUse(f"{file} says something else already", hint="remove it first, or leave out --persistent")
    return kept_setting(file, subject, before, text)


def _parameters(card: VgpuCard, kind: str, given: Iterable[tuple[str, str]], count: int) -> Iterator[tuple[str, str]]:
    """The files of a vGPU's own that are written, and with what. NVIDIA's takes a list: `name=value, name=value`."""
    nvidia = card.dialect is Dialect.VENDOR or kind.startswith("nvidia-")
    listed = []
    given = tuple(given)
    names = [name.removeprefix("nvidia/") for name, _ in given]
    if len(set(names)) < len(names) or (_LIST in names and {*names} - {_LIST, "placement_id"}):
        raise BadSpec("a parameter is given twice", hint="give each once")
    if count > 1 and "placement_id" in names:
        raise BadSpec("a placement_id is for one vGPU", hint="leave out --count")
    for name, value in given:
        if "/" in name:
            yield name, value
        elif not nvidia:
            raise BadSpec(f"{name!r} is no parameter of a vGPU of {card.id}", hint="name a file: folder/file=value")
        elif name == "placement_id":
            yield _PLACEMENT, value
        elif "," in value or not re.fullmatch(r"[A-Za-z0-9_]{1,64}", name, re.ASCII):
            raise BadSpec(f"not a parameter: {f'{name}={value}'[:80]!r}", hint="give each as --param name=value")
        else:
            listed.append(f"{name}={value}")
    if listed:
        yield _PARAMETERS, ", ".join(listed)


def _parameter(dialect: Dialect, subject: Uuid | PciAddress, name: str, value: str) -> Setting:
    file = f"{_FOLDERS[dialect].format(subject)}/{name}"
    try:
        return Setting(kind=SettingKind.PARAMETER, name=file, address=subject, before="", after=value)
    except ValueError:
        raise BadSpec(
            f"not a parameter of a vGPU: {f'{name}={value}'[:80]!r}",
            hint="name one for vgpu_params, or a file of the driver's own folder, and a plain value",
        ) from None


def _parameter_notes(wish: VgpuRequest) -> Iterator[str]:
    if wish.parameters:
        yield "parameters are written before any guest has the vGPU, and go with it"


# -- removing ----------------------------------------------------------------------------------------


def plan_remove(
    found: Vgpus,
    intent: Intent,
    facts: Facts,
    texts: Texts,
    made: Mapping[str, Made],
    circumstances: Circumstances = NOTHING_KNOWN,
) -> Plan:
    """Those vGPUs go, unless somebody holds one, or vfioctl did not make it.

    `found` says whose they are. Raises Foreign, DeviceInUse, BadSpec, UnknownDevice.
    """
    wish = _wish(intent)
    there = {vgpu.id for vgpu in found.instances}
    named = dict.fromkeys(wish.instances)
    absent = [name for name in named if name not in there and texts.get(kept_file(name, ""))]
    going = [_instance(found, name) for name in named if name not in absent]
    for vgpu in going:
        _refuse_lasting(vgpu)
    foreign = [vgpu for vgpu in going if vgpu.owner != OURS]
    if foreign and not wish.foreign:
        raise Foreign(
            f"vfioctl did not make {', '.join(vgpu.id for vgpu in foreign)}",
            hint="whoever made it may still need it; --foreign removes it all the same",
            facts={"foreign": [vgpu.id for vgpu in foreign]},
        )
    held = [holder for holder in circumstances.holders.refusing if holder.kind != HolderKind.VGPU]
    refuse(holding(held, wish.instances, intent), ())
    kept = {each.id for each in made.values() if each.kept}
    settings = [setting for vgpu in going for setting in _removed(vgpu, texts, kept=vgpu.id in kept)]
    settings += (kept_setting(kept_file(name, ""), name, texts[kept_file(name, "")], "") for name in absent)
    notes = [f"{name} is not there now, and is made at boot no more" for name in absent]
    notes += [
        f"{vgpu.id} stays defined in {vgpu.definition.path}: it comes back when that is started"
        for vgpu in going
        if vgpu.definition and not any(s.name == vgpu.definition.path for s in settings)
    ]
    notes += [f"{h.address} is held by {told(h)}: it may stay a zombie (--force-holders)" for h in held]
    if circumstances.holders.unread:
        notes.append(f"{circumstances.holders.unread} processes could not be read, and may hold them too")
    cards = tuple(dict.fromkeys(vgpu.card for vgpu in going))
    return _plan(intent, facts, tuple(settings), [vgpu.parent for vgpu in going], notes, cards)


def _instance(found: Vgpus, name: str) -> Vgpu:
    of_it = [vgpu for vgpu in found.instances if vgpu.id == name]
    live = [vgpu for vgpu in of_it if vgpu.state is not VgpuState.DEFINED]
    if not of_it:
        raise UnknownDevice(f"there is no vGPU {name} here", hint="vfioctl vgpu list shows those that are")
    return (live or of_it)[0]


def _refuse_lasting(vgpu: Vgpu) -> None:
    """What cannot go by itself."""
    if vgpu.state is VgpuState.WEDGED:
        raise DeviceInUse(f"the making of {vgpu.id} never returned", hint="when it has", next_command="vfioctl recover")
    if vgpu.state is VgpuState.ZOMBIE:
        raise DeviceInUse(
            f"{vgpu.id} was removed while somebody had it open: it goes when they let go of it",
            hint="end the guest that has it; nothing else can be done",
        )
    if vgpu.dialect not in (Dialect.MDEV, Dialect.VENDOR):
        raise BadSpec(f"{vgpu.id} is a VF: VFs go all at once", hint=f"vfioctl sriov off {vgpu.card}")


def _removed(vgpu: Vgpu, texts: Texts, *, kept: bool) -> Iterator[Setting]:
    """The vGPU, what it was set to (so that it can come back), and its definition where that is vfioctl's."""
    subject: Uuid | PciAddress = Uuid(vgpu.id) if vgpu.dialect is Dialect.MDEV else PciAddress(vgpu.id)
    defined = vgpu.state is VgpuState.DEFINED
    if isinstance(subject, Uuid) and not defined:
        value = f"{vgpu.parent}/{vgpu.type}"
        yield Setting(kind=SettingKind.MDEV, name=subject, address=subject, before=value, after="")
    elif not defined:
        file = f"/sys/bus/pci/devices/{subject}/nvidia/current_vgpu_type"
        yield Setting(kind=SettingKind.VGPU_TYPE, name=file, address=subject, before=vgpu.type, after="0")
    for name in (_PARAMETERS, _PLACEMENT):
        text = vgpu.attributes.get(name.rpartition("/")[2], "").strip()
        if text and (name == _PARAMETERS or text.isdecimal()):
            with suppress(ValueError):  # what no plan could write comes back without
                file = f"{_FOLDERS[vgpu.dialect].format(subject)}/{name}"
                yield Setting(kind=SettingKind.PARAMETER, name=file, address=subject, before=text, after="")
    defined_in = vgpu.definition.path if vgpu.definition and isinstance(subject, Uuid) else ""
    file = defined_in or kept_file(subject, vgpu.parent)
    if (kept or defined or not isinstance(subject, Uuid)) and texts.get(file):  # a file of vfioctl's own always goes
        yield kept_setting(file, subject, texts[file], "")


def kept_setting(file: str, subject: Uuid | PciAddress, before: str, after: str) -> Setting:
    """A file below /etc before and after. Raises BadSpec for one that is no plain text."""
    try:
        return Setting(kind=SettingKind.KEPT, name=file, address=subject, before=before, after=after)
    except ValueError:
        raise BadSpec(
            f"{file} is not plain text: it could not be put back",
            hint=f"mdevctl undefine --uuid {subject}" if isinstance(subject, Uuid) else "repair it, or remove it",
        ) from None


# -- the document ------------------------------------------------------------------------------------


def _wish(intent: Intent) -> VgpuRequest:
    if intent.vgpu_request is None:
        raise BadSpec("the plan does not say which vGPUs it is about")
    return intent.vgpu_request


def _plan(
    intent: Intent,
    facts: Facts,
    settings: tuple[Setting, ...],
    places: Sequence[str],
    notes: Iterable[str],
    cards: tuple[str, ...],
) -> Plan:
    concerned = dict.fromkeys((*cards, *places))
    return Plan.make(
        intent=intent,
        facts=tuple(fact for address, fact in facts.items() if address in concerned),
        changes=(),
        settings=settings,
        steps=steps({}, {}, settings=settings),
        cards=cards,
        notes=tuple(notes),
    )
