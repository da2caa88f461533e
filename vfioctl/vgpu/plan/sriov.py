"""Plans changes of the number of VFs of a PF, and of the profiles of an xe card. Pure; refuses before any change. VFs
are removed only when they are free: vGPUs and guests on them must be removed first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vfioctl.binding.model.binding import Binding
from vfioctl.core.change import Change, CheckRequest, Draft
from vfioctl.errors import BadSpec, DeviceInUse, Foreign, HostError, some_of
from vfioctl.inventory.model.functions import Function, Inventory
from vfioctl.inventory.model.holders import Holders
from vfioctl.inventory.model.preconditions import holding, refuse, refuse_marked
from vfioctl.inventory.model.scope import function_fact, in_order, named
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.protocol import PCI_DEVICES
from vfioctl.vgpu.model.intents import ProfileIntent, SetVfsIntent
from vfioctl.vgpu.model.kinds import (
    AUTOPROBE,
    BINDING,
    CHECK,
    NVIDIA_VFS,
    PROFILE,
    VF_COUNT,
    PhysicalFunction,
    autoprobe_file,
    count_file,
)
from vfioctl.vgpu.model.persistent import own_definition_file, vfs_text
from vfioctl.vgpu.model.vgpu import Created, VgpuCard, Vgpus, VgpuState
from vfioctl.vgpu.plan.remove import NOBODY
from vfioctl.vgpu.resources.files import ProfileValue, chosen_in, definition_change

_MOST_NAMED = 4


def plan_vfs(
    inventory: Inventory,
    vgpus: Vgpus,
    intent: SetVfsIntent,
    known: PhysicalFunction,
    created: Mapping[str, Created],
    holders: Holders = NOBODY,
) -> Draft:
    """The draft that sets the number of VFs of one PF. Raises BadSpec, HostError, DeviceInUse, Foreign."""
    function, now = inventory.by_address[intent.devices[0]], len(inventory.by_address[intent.devices[0]].virtfns)
    nvidia = function.driver == "nvidia"
    _refuse_count(function, known, intent.vfs)
    refuse_marked(function)
    if now and now != intent.vfs:
        _refuse_foreign(function, intent, created)
        _refuse_live(inventory, function, vgpus, intent)
    if now != intent.vfs:
        taken = in_order((*function.virtfns, *([function.address] if nvidia else ())))
        refuse(holding(holders.holders, taken, intent), _of(inventory, taken))
    if nvidia and now != intent.vfs:
        _refuse_by_nvidia(function, known, intent.vfs)
    driven = any(vf.driver for vf in _of(inventory, function.virtfns))
    concerned = in_order((function.address, *(function.virtfns if now != intent.vfs else ())))
    return Draft(
        intent=intent,
        facts=tuple(function_fact(function) for function in _of(inventory, concerned)),
        changes=(*_counts(function, known, intent.vfs, driven=driven), *_definition(function, known, intent)),
        checks=(CheckRequest(kind=CHECK, subjects=(function.address,)),),
        notes=tuple(_notes(function, known, intent, now)),
    )


def _refuse_count(function: Function, known: PhysicalFunction, wanted: int) -> None:
    if not known.total:
        what = "is a VF itself" if function.is_vf else "has no VFs to turn on"
        raise BadSpec(f"{named(function)} {what}", hint="name a PF: vfioctl vgpu types lists those of GPUs")
    if wanted > known.total:
        raise BadSpec(f"{named(function)} has at most {known.total} VFs", hint="give a number up to that, or all")
    if wanted == len(function.virtfns):
        return
    hint, unbind = "give it back to its driver first", f"vfioctl unbind {function.address}"
    if function.driver is None:
        raise HostError(f"{named(function)}: VFs are created by its driver", hint=hint, next_command=unbind)
    if function.on_vfio:
        raise DeviceInUse(f"{named(function)} is bound for a guest", hint=hint, next_command=unbind)
    if function.driver == "gim":
        raise HostError(
            f"{named(function)}: gim creates its VFs when it is loaded", hint="its parameter vf_num says how many"
        )


def _refuse_foreign(function: Function, intent: SetVfsIntent, created: Mapping[str, Created]) -> None:
    now = str(len(function.virtfns))
    ours = function.address in created and created[function.address].place == now
    if not ours and not intent.foreign:
        raise Foreign(
            f"vfioctl did not create the {now} VFs of {named(function)}",
            hint="whoever created them may still need them; --foreign changes them all the same",
        )


def _refuse_live(inventory: Inventory, function: Function, vgpus: Vgpus, intent: SetVfsIntent) -> None:
    """Raises DeviceInUse when a VF is a vGPU, or a guest may have it."""
    vfs = set(function.virtfns)
    if live := [v for v in vgpus.instances if v.parent in vfs and v.state is not VgpuState.DEFINED]:
        raise DeviceInUse(
            f"{named(function)} has live vGPUs: {_listed(f'{v.profile or v.type} {v.id} on {v.parent}' for v in live)}",
            hint="vfioctl vgpu remove each of them first",
            facts={"vgpus": [vgpu.id for vgpu in live]},
        )
    of_it = _of(inventory, function.virtfns)
    if passed_through := [vf for vf in of_it if vf.on_vfio]:
        raise DeviceInUse(
            f"{named(function)} has VFs for guests: {_listed(f'{vf.address} on {vf.driver}' for vf in passed_through)}",
            hint="give them back to their driver first",
            next_command=f"vfioctl unbind {' '.join(vf.address for vf in passed_through)}",
            facts={"vfs": [vf.address for vf in passed_through]},
        )
    if intent.vfs and (driven := [vf for vf in of_it if vf.driver]):
        raise DeviceInUse(
            f"{named(function)} has VFs with drivers: {_listed(f'{vf.address} on {vf.driver}' for vf in driven)}",
            hint="turn them off first",
            next_command=f"vfioctl sriov off {function.address}{' --foreign' if intent.foreign else ''}",
        )


def _refuse_by_nvidia(function: Function, known: PhysicalFunction, wanted: int) -> None:
    if wanted not in (0, known.total):
        raise BadSpec(
            f"NVIDIA's sriov-manage turns on all {known.total} VFs of {function.address}, or none", hint="say all"
        )
    if known.gpu_instances:
        raise DeviceInUse(
            f"{named(function)} is in MIG mode: sriov-manage would take its GPU instances with it",
            hint="turn MIG off first (nvidia-smi -mig 0), and create the GPU instances again afterwards",
        )


def _counts(function: Function, known: PhysicalFunction, wanted: int, *, driven: bool) -> Iterable[Change]:
    """The changes of the count and of autoprobe, so that no driver binds to new VFs or to VFs that a rollback creates.
    `driven`: whether VFs have drivers now; autoprobe is then not changed, so that a rollback binds them again."""
    address, before, after = function.address, str(len(function.virtfns)), str(wanted)
    if function.driver == "nvidia":
        yield Change(kind=NVIDIA_VFS, name=address, subject=address, before=before, after=after)
        if before != after:  # sriov-manage unbinds the GPU for a moment; verify that it is bound again
            binding = Binding(function.driver, function.driver_override).text
            yield Change(kind=BINDING, name=address, subject=address, before=binding, after=binding)
        return
    during = "0" if before != after and "0" not in (before, after) else None
    yield Change(kind=VF_COUNT, name=count_file(address), subject=address, before=before, after=after, during=during)
    if before != after and known.autoprobe == "1" and not driven:
        file, during = autoprobe_file(address), "0" if wanted else None
        yield Change(kind=AUTOPROBE, name=file, subject=address, before="1", after="1", during=during)


def _definition(function: Function, known: PhysicalFunction, intent: SetVfsIntent) -> Iterable[Change]:
    """The definition: written with --persistent, removed with the VFs."""
    text = vfs_text(function.address, intent.vfs, function.identity) if intent.persistent and intent.vfs else ""
    if text or (known.definition and not intent.vfs):
        file = own_definition_file(function.address)
        yield definition_change(file, function.address, known.definition, text)


def _notes(function: Function, known: PhysicalFunction, intent: SetVfsIntent, now: int) -> Iterable[str]:
    wanted, nvidia = intent.vfs, function.driver == "nvidia"
    if wanted and wanted != now and not nvidia:
        yield "the kernel binds no drivers to the VFs: vfioctl bind hands each to vfio-pci"
    if known.definition and wanted and not intent.persistent:
        file = own_definition_file(function.address)
        yield f"at boot there will be as many as {file} says: --persistent renews it"
    if nvidia and wanted != now:
        yield (
            "sriov-manage takes the GPU from its driver for a moment; "
            "its exit status is ignored, and the VFs are counted"
        )
        yield "mixed-size mode, where it is on, is off afterwards"


def _of(inventory: Inventory, addresses: Iterable[PciAddress]) -> list[Function]:
    return [inventory.by_address[address] for address in addresses if address in inventory.by_address]


def _listed(words: Iterable[str]) -> str:
    known = list(words)
    more = f", and {len(known) - _MOST_NAMED} more" if len(known) > _MOST_NAMED else ""
    return f"{', '.join(known[:_MOST_NAMED])}{more}"


def plan_profile(inventory: Inventory, card: VgpuCard, intent: ProfileIntent) -> Draft:
    """The draft that sets `intent.parameters` (`SCOPE/NAME` and value) of an xe card's PF or VFs. Raises BadSpec."""
    known = {f"{profile.of}/{name}": text for profile in card.profiles for name, text in profile.values.items()}
    if len({name for name, _ in intent.parameters}) < len(intent.parameters):
        raise BadSpec("a profile value is given twice")
    changes = [_profile(card, name, value, known) for name, value in intent.parameters]
    return Draft(
        intent=intent,
        facts=(function_fact(inventory.by_address[PciAddress(card.id)]),),
        changes=tuple(change for change in changes if change.before != change.after),
        checks=(CheckRequest(kind=CHECK, subjects=(card.id,)),),
    )


def _profile(card: VgpuCard, name: str, value: str, known: Mapping[str, str]) -> Change:
    if name not in known:
        raise BadSpec(
            f"{card.id} has no profile value {name!r}",
            hint=f"it has {some_of(sorted(known), most=8)}" if known else "only xe cards have profiles",
        )
    scope, _, file = name.partition("/")
    try:
        change = Change(
            kind=PROFILE,
            name=f"{PCI_DEVICES}/{card.id}/sriov_admin/{scope}/profile/{file}",
            subject=card.id,
            before=chosen_in(known[name]),
            after=value,
        )
        ProfileValue().validate(change)
    except ValueError:
        raise BadSpec(f"not a profile value: {value[:40]!r}", hint="a number, or one of the words it shows") from None
    return change
