"""Plans keeping vGPUs that exist: each boot creates them again. May not do input or output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from vfioctl.core.change import Change, CheckRequest, Draft, Fact, Intent
from vfioctl.errors import BadSpec, DeviceInUse, HostError, UnknownDevice
from vfioctl.inventory.model.values import PciAddress
from vfioctl.vgpu.model.kinds import CHECK, KEPT, is_uuid, keeps
from vfioctl.vgpu.model.persistent import definition_file, definition_text, identity_in, vgpu_text
from vfioctl.vgpu.model.vgpu import FOREIGN, Created, Dialect, Vgpu, Vgpus, VgpuState, VgpuType
from vfioctl.vgpu.resources.files import definition_change


def plan_keep(
    intent: Intent,
    names: Sequence[str],
    vgpus: Vgpus,
    facts: Mapping[str, Fact],
    texts: Mapping[str, str],
    created: Mapping[str, Created],
) -> Draft:
    """The draft that makes these vGPUs vfioctl's, and persistent. Nothing of them changes now. `texts`: of their
    definitions. `created`: the ledger's records. Raises UnknownDevice, HostError, DeviceInUse."""
    by_id = {vgpu.id: vgpu for vgpu in vgpus.instances}
    changes: list[Change] = []
    for name in names:
        if name not in by_id:
            raise UnknownDevice(f"there is no vGPU {name} here", hint="vfioctl vgpu list shows them")
        vgpu = by_id[name]
        _refuse(vgpu)
        wanted = _definition(vgpu, vgpus, facts, texts)
        if wanted or not (name in created and created[name].persistent):
            changes += (*wanted, _unchanged(vgpu))
    cards = tuple(dict.fromkeys(by_id[change.subject].card for change in changes))
    concerned = {*cards, *(by_id[change.subject].parent for change in changes)}
    return Draft(
        intent=intent,
        facts=tuple(fact for address, fact in facts.items() if address in concerned),
        changes=tuple(changes),
        checks=(CheckRequest(kind=CHECK, subjects=cards),) if cards else (),
        notes=tuple(_notes([by_id[change.subject] for change in changes if keeps(change)])),
    )


def _refuse(vgpu: Vgpu) -> None:
    if not is_uuid(vgpu.id) and vgpu.dialect is not Dialect.VENDOR:
        raise BadSpec(
            f"{vgpu.id} has no vGPU type: VFs are kept with their PF",
            hint=f"vfioctl sriov set {vgpu.card} N --persistent, for the N that it has",
        )
    if vgpu.state is VgpuState.DEFINED:
        raise HostError(
            f"{vgpu.id} is defined, but does not exist now",
            hint="start it first, which shows that it works",
            next_command=f"mdevctl start --uuid {vgpu.id}",
        )
    if vgpu.state is not VgpuState.LIVE:
        raise DeviceInUse(f"{vgpu.id} is {vgpu.state}", hint="vfioctl vgpu show says more")


def _definition(vgpu: Vgpu, vgpus: Vgpus, facts: Mapping[str, Fact], texts: Mapping[str, str]) -> list[Change]:
    file = vgpu.definition.path if vgpu.definition else definition_file(vgpu.id, vgpu.parent)
    before = texts.get(file, "")
    if is_uuid(vgpu.id):
        if vgpu.definition and vgpu.definition.type != vgpu.type:
            raise DeviceInUse(
                f"{file} defines {vgpu.definition.type}, but {vgpu.id} is {vgpu.type} now",
                hint="correct the definition with mdevctl modify, or remove it with mdevctl undefine",
            )
        parameters = dict(vgpu.definition.attributes) if vgpu.definition else vgpu.parameters
        starts = vgpu.definition is not None and vgpu.definition.start == "auto"
        text = before if starts else definition_text(vgpu.type, parameters)
    else:
        kinds = [kind for card in vgpus.cards if card.id == vgpu.card for kind in card.types if kind.id == vgpu.type]
        kind = kinds[0] if kinds else VgpuType(vgpu.type, vgpu.type_name)
        text = vgpu_text(vgpu.card, PciAddress(vgpu.id), kind, vgpu.parameters, identity_in(facts, vgpu.card))
    return [definition_change(file, vgpu.id, before, text)] if text != before else []


def _unchanged(vgpu: Vgpu) -> Change:
    value = f"{vgpu.parent}/{vgpu.type}"
    return Change(kind=KEPT, name=vgpu.id, subject=vgpu.id, before=value, after=value)


def _notes(kept: Sequence[Vgpu]) -> Iterator[str]:
    for vgpu in kept:
        if vgpu.definition:
            file = vgpu.definition.path
            yield f"{vgpu.id} and {file} are vfioctl's from now on: vfioctl vgpu remove deletes both"
        elif vgpu.owner == FOREIGN:
            yield f"{vgpu.id} is vfioctl's from now on: vfioctl vgpu remove needs no --foreign"
