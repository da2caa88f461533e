"""Plans the removal of vGPUs through any kernel interface. Pure; refuses before anything is changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Never

from vfioctl.core.change import Change, CheckRequest, Draft
from vfioctl.errors import BadSpec, DeviceInUse, Foreign, UnknownDevice
from vfioctl.inventory.model.functions import is_vfio_driver
from vfioctl.inventory.model.holders import Holders
from vfioctl.inventory.model.preconditions import holding, refuse, unread_notes
from vfioctl.vgpu.model.intents import RemoveVgpuIntent
from vfioctl.vgpu.model.kinds import CHECK, MDEV, PARAMETER, VGPU_TYPE, own_folder, type_file
from vfioctl.vgpu.model.persistent import definition_file, own_definition_file, still_defined
from vfioctl.vgpu.model.report import type_name_facts
from vfioctl.vgpu.model.vgpu import OURS, Created, Dialect, Vgpu, Vgpus, VgpuState
from vfioctl.vgpu.plan.create import PARAMETERS, PLACEMENT, Facts, Texts
from vfioctl.vgpu.resources.files import Parameter, definition_change

NOBODY = Holders(devices=())


def plan_remove(
    vgpus: Vgpus,
    intent: RemoveVgpuIntent,
    facts: Facts,
    texts: Texts,
    created: Mapping[str, Created],
    holders: Holders = NOBODY,
) -> Draft:
    """The draft that removes the vGPUs, unless one is held, or was not created by vfioctl. `vgpus`: with owners;
    `created`: the ledger's records, for what is persistent. Raises Foreign, DeviceInUse, BadSpec, UnknownDevice."""
    existing = {vgpu.id for vgpu in vgpus.instances}
    named = dict.fromkeys(intent.vgpus)
    absent = [name for name in named if name not in existing and texts.get(own_definition_file(name))]
    going = [_vgpu_named(vgpus, name) for name in named if name not in absent]
    persistent = {record.id for record in created.values() if record.persistent}
    _refuse(going, intent, vgpus)
    _refuse_definitions([vgpu for vgpu in going if vgpu.id not in persistent], intent)
    held = [holder for holder in holders.refusing if holder.kind not in intent.ignores]
    refuse(holding(held, intent.vgpus, intent), ())
    undefined = {vgpu.id for vgpu in going if intent.definition} | persistent
    changes = [c for vgpu in going for c in _removed(vgpu, texts, undefined=vgpu.id in undefined)]
    for name in absent:
        file = own_definition_file(name)
        changes.append(definition_change(file, name, texts[file], ""))
    cards = tuple(dict.fromkeys(vgpu.card for vgpu in going))
    functions = dict.fromkeys((*cards, *(vgpu.parent for vgpu in going)))
    notes = [f"{name} does not exist now, and is no longer created at boot" for name in absent]
    files = {change.name for change in changes}
    stay = ((vgpu.id, vgpu.definition) for vgpu in going if vgpu.definition and vgpu.definition.path not in files)
    notes += [f"{still_defined(*defined)}; --definition removes that too" for defined in stay]
    notes += [f"{h.address} is held by {h.words}: it may stay a zombie (--force-holders)" for h in held]
    notes += unread_notes(holders)
    return Draft(
        intent=intent,
        facts=(
            *(fact for address, fact in facts.items() if address in functions),
            *type_name_facts(card for card in vgpus.cards if card.id in cards),
        ),
        changes=tuple(changes),
        checks=(CheckRequest(kind=CHECK, subjects=cards),),
        notes=tuple(notes),
    )


def _vgpu_named(vgpus: Vgpus, name: str) -> Vgpu:
    of_it = [vgpu for vgpu in vgpus.instances if vgpu.id == name]
    live = [vgpu for vgpu in of_it if vgpu.state is not VgpuState.DEFINED]
    if not of_it:
        raise UnknownDevice(f"there is no vGPU {name} here", hint="vfioctl vgpu list shows those that are")
    return (live or of_it)[0]


def _refuse(going: list[Vgpu], intent: RemoveVgpuIntent, vgpus: Vgpus) -> None:
    for vgpu in going:
        _refuse_lasting(vgpu, vgpus)
    foreign = [vgpu for vgpu in going if vgpu.owner != OURS]
    if foreign and not intent.foreign:
        raise Foreign(
            f"vfioctl did not create {', '.join(vgpu.id for vgpu in foreign)}",
            hint="whoever created it may still need it; --foreign removes it all the same",
            facts={"foreign": [vgpu.id for vgpu in foreign]},
        )


def _refuse_definitions(going: list[Vgpu], intent: RemoveVgpuIntent) -> None:
    written = [vgpu.definition.path for vgpu in going if vgpu.definition]
    if written and intent.definition and not intent.foreign:
        raise Foreign(
            f"vfioctl did not write {', '.join(written)}",
            hint="whoever wrote it may still need it; --foreign removes it all the same",
            facts={"foreign": written},
        )


def _refuse_lasting(vgpu: Vgpu, vgpus: Vgpus) -> None:
    if vgpu.state is VgpuState.WEDGED:
        raise DeviceInUse(
            f"{vgpu.id} is wedged: {vgpu.unknown.get('state', 'a write never returned')}",
            hint="when it has returned",
            next_command="vfioctl recover",
        )
    if vgpu.state is VgpuState.ZOMBIE:
        raise DeviceInUse(
            f"{vgpu.id} was removed while it was open: it disappears when it is closed",
            hint="stop the guest that has it open; there is no other way",
        )
    if vgpu.dialect not in (Dialect.MDEV, Dialect.VENDOR):
        _refuse_one_vf(vgpu, vgpus)


def _refuse_one_vf(vgpu: Vgpu, vgpus: Vgpus) -> Never:
    foreign = " --foreign" if vgpu.owner != OURS else ""
    hint, command = "turn off all VFs of the card", f"vfioctl sriov off {vgpu.card}{foreign}"
    if passed_through := [vf.id for vf in vgpus.instances if vf.card == vgpu.card and is_vfio_driver(vf.driver or "")]:
        hint = "give those on VFIO back to their driver, then turn off all VFs of the card"
        command = f"vfioctl unbind {' '.join(passed_through)}"
    if any(card.id == vgpu.card and card.driver == "gim" for card in vgpus.cards):
        hint, command = "unload gim, which creates its VFs when it is loaded", ""
    raise BadSpec(f"{vgpu.id} is a VF: VFs are removed together", hint=hint, next_command=command)


def _removed(vgpu: Vgpu, texts: Texts, *, undefined: bool) -> Iterator[Change]:
    """The changes of the vGPU, its parameters (for a rollback), and its definition (`undefined`: also mdevctl's)."""
    subject, defined = vgpu.id, vgpu.state is VgpuState.DEFINED
    mdev = vgpu.dialect is Dialect.MDEV
    if not defined and mdev:
        yield Change(kind=MDEV, name=subject, subject=subject, before=f"{vgpu.parent}/{vgpu.type}", after="")
    elif not defined:
        yield Change(kind=VGPU_TYPE, name=type_file(subject), subject=subject, before=vgpu.type, after="0")
    for name in (PARAMETERS, PLACEMENT):
        text = vgpu.attributes.get(name.rpartition("/")[2], "").strip()
        if text and (name == PARAMETERS or text.isdecimal()):
            with suppress(ValueError):  # a parameter that no plan can write is not restored
                file = f"{own_folder(subject)}/{name}"
                change = Change(kind=PARAMETER, name=file, subject=subject, before=text, after="")
                Parameter().validate(change)
                yield change
    defined_in = vgpu.definition.path if vgpu.definition and mdev else ""
    file = defined_in or definition_file(subject, vgpu.parent)
    if (undefined or defined or not mdev) and texts.get(file):  # a definition in vfioctl's format is always removed
        yield definition_change(file, subject, texts[file], "")
