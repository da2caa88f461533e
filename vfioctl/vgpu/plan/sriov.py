"""How many VFs a PF has, and what each of an xe card may take. Pure; says no before anything is touched.

On the way down nothing is left behind: vGPUs and guests go first, then the VFs, then the PF.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from vfioctl.binding.model.circumstances import NOTHING_KNOWN, Circumstances
from vfioctl.binding.plan.steps import steps
from vfioctl.core.change import Intent, Plan
from vfioctl.core.setting import Setting, SettingKind
from vfioctl.errors import BadSpec, DeviceInUse, Foreign, HostError
from vfioctl.inventory.model.functions import Function, Inventory
from vfioctl.inventory.model.refusals import holding, refuse, refuse_marked
from vfioctl.inventory.model.scope import fact_of, in_order, named
from vfioctl.inventory.model.values import PciAddress
from vfioctl.vgpu.model.persistent import kept_file, vfs_text
from vfioctl.vgpu.model.vgpu import Made, Vgpu, VgpuCard, Vgpus, VgpuState
from vfioctl.vgpu.plan.vgpu import kept_setting

_MOST_NAMED = 4


@dataclass(frozen=True, slots=True)
class PhysicalFunction:
    """What the kernel says of a PF beside the inventory."""

    total: int
    autoprobe: str
    kept: str
    """The text of vfioctl's own file about it; empty without one."""
    gpu_instances: bool = False
    """Whether MIG cuts it, or, where that cannot be told, any GPU of NVIDIA's here."""


def plan_vfs(
    inventory: Inventory,
    found: Vgpus,
    intent: Intent,
    known: PhysicalFunction,
    made: Mapping[str, Made],
    circumstances: Circumstances = NOTHING_KNOWN,
) -> Plan:
    """So many VFs of one PF, none for 0. Raises BadSpec, HostError, DeviceInUse, Foreign."""
    function = inventory.by_address[intent.devices[0]]
    wish = intent.vgpu_request
    if wish is None or wish.vfs is None:
        raise BadSpec("the plan does not say how many VFs there are to be")
    _refuse_count(function, known, wish.vfs)
    refuse_marked(function)
    now = len(function.virtfns)
    if now and now != wish.vfs:
        ours = function.address in made and made[function.address].place == str(now)
        if not ours and not wish.foreign:
            raise Foreign(
                f"vfioctl did not make the {now} VFs of {named(function)}",
                hint="whoever made them may still need them; --foreign changes them all the same",
            )
        _refuse_live(inventory, function, found, drivers_matter=wish.vfs != 0)
    nvidia = function.driver == "nvidia"
    if now != wish.vfs:
        taken = in_order((*function.virtfns, *([function.address] if nvidia else ())))
        refuse(holding(circumstances.holders.holders, taken, intent), _of(inventory, taken))
    if nvidia and now != wish.vfs:
        _refuse_by_nvidia(function, known, wish.vfs)
    driven = any(vf.driver for vf in _of(inventory, function.virtfns))
    settings = (*_counts(function, known, wish.vfs, nvidia=nvidia, driven=driven), *_kept(function, known, intent))
    concerned = in_order((function.address, *(function.virtfns if now != wish.vfs else ())))
    return Plan.make(
        intent=intent,
        facts=tuple(fact_of(inventory.by_address[a]) for a in concerned if a in inventory.by_address),
        changes=(),
        settings=settings,
        steps=steps({}, {}, settings=settings),
        cards=(function.address,),
        notes=tuple(_notes(function, known, wish.vfs, now, nvidia=nvidia, persistent=wish.persistent)),
    )


def _refuse_count(function: Function, known: PhysicalFunction, wanted: int) -> None:
    if not known.total:
        what = "is a VF itself" if function.is_vf else "has no VFs to turn on"
        raise BadSpec(f"{named(function)} {what}", hint="name a PF: vfioctl vgpu types lists those of GPUs")
    if wanted > known.total:
        raise BadSpec(f"{named(function)} has {known.total} VFs at most", hint="say a number up to that, or all")
    if wanted == len(function.virtfns):
        return
    if function.driver is None:
        raise HostError(f"{named(function)}: VFs are made by its driver", hint=f"vfioctl unbind {function.address}")
    if function.on_vfio:
        raise DeviceInUse(f"{named(function)} is for a guest", hint=f"vfioctl unbind {function.address} first")
    if function.driver == "gim":
        raise HostError(
            f"{named(function)}: gim makes its VFs as it is loaded", hint="its parameter vf_num says how many"
        )


def _refuse_live(inventory: Inventory, function: Function, found: Vgpus, *, drivers_matter: bool) -> None:
    """VFs that are cut, or that a guest may have, do not go."""
    vfs = set(function.virtfns)
    if cut := [v for v in found.instances if _is_vgpu_on(v, vfs)]:
        raise DeviceInUse(
            f"{named(function)} has live vGPUs: {_listed(f'{v.profile or v.type} {v.id} on {v.parent}' for v in cut)}",
            hint="vfioctl vgpu remove each of them first",
            facts={"vgpus": [vgpu.id for vgpu in cut]},
        )
    of_it = _of(inventory, function.virtfns)
    if given := [vf for vf in of_it if vf.on_vfio]:
        raise DeviceInUse(
            f"{named(function)} has VFs for guests: {_listed(f'{vf.address} on {vf.driver}' for vf in given)}",
            hint=f"vfioctl unbind {' '.join(vf.address for vf in given)} first",
            facts={"vfs": [vf.address for vf in given]},
        )
    if drivers_matter and (driven := [vf for vf in of_it if vf.driver]):
        raise DeviceInUse(
            f"{named(function)} has VFs with drivers: {_listed(f'{vf.address} on {vf.driver}' for vf in driven)}",
            hint=f"turn them off first: vfioctl sriov off {function.address}",
        )


def _is_vgpu_on(vgpu: Vgpu, vfs: set[PciAddress]) -> bool:
    return vgpu.parent in vfs and vgpu.state is not VgpuState.DEFINED


def _refuse_by_nvidia(function: Function, known: PhysicalFunction, wanted: int) -> None:
    if wanted not in (0, known.total):
        raise BadSpec(
            f"NVIDIA's sriov-manage turns on all {known.total} VFs of {function.address}, or none", hint="say all"
        )
    if known.gpu_instances:
        raise DeviceInUse(
            f"{named(function)} is in MIG mode: sriov-manage would take its GPU instances with it",
            hint="turn MIG off first (nvidia-smi -mig 0), and make the GPU instances again afterwards",
        )


def _counts(
    function: Function, known: PhysicalFunction, wanted: int, *, nvidia: bool, driven: bool
) -> Iterable[Setting]:
    """The count, and that VFs find no drivers as they come: those that go, too, should they be put back.

    `driven`: whether there are VFs with drivers, which are to find these again.
    """
    address, now = function.address, len(function.virtfns)
    if nvidia:
        kind, name = SettingKind.NVIDIA_VFS, str(address)
        yield Setting(kind=kind, name=name, address=address, before=str(now), after=str(wanted))
        return
    home = f"/sys/bus/pci/devices/{address}"
    yield Setting(
        kind=SettingKind.VF_COUNT,
        name=f"{home}/sriov_numvfs",
        address=address,
        before=str(now),
        after=str(wanted),
        during="0" if now and wanted and now != wanted else None,
    )
    if wanted != now and known.autoprobe == "1" and not driven:
        yield Setting(
            kind=SettingKind.AUTOPROBE,
            name=f"{home}/sriov_drivers_autoprobe",
            address=address,
            before="1",
            after="1",
            during="0",
        )


def _kept(function: Function, known: PhysicalFunction, intent: Intent) -> Iterable[Setting]:
    """With --persistent, what has them made again at boot; it goes with them."""
    wish = intent.vgpu_request
    assert wish is not None
    assert wish.vfs is not None
    text = vfs_text(function.address, wish.vfs) if wish.persistent and wish.vfs else ""
    if text or (known.kept and not wish.vfs):
        file = kept_file(function.address, "")
        yield kept_setting(file, function.address, known.kept, text)


def _notes(
    function: Function, known: PhysicalFunction, wanted: int, now: int, *, nvidia: bool, persistent: bool
) -> Iterable[str]:
    if wanted and wanted != now and not nvidia:
        yield "the VFs find no drivers by themselves: vfioctl bind hands each to vfio-pci"
    if known.kept and wanted and not persistent:
        yield f"at boot there will be as many as {kept_file(function.address, '')} says: --persistent renews it"
    if nvidia and wanted != now:
        yield "sriov-manage takes the GPU from its driver for a moment; its word is not trusted, the VFs are counted"
        yield "mixed-size mode, where it is on, is off afterwards"


def _of(inventory: Inventory, addresses: Iterable[PciAddress]) -> list[Function]:
    return [inventory.by_address[address] for address in addresses if address in inventory.by_address]


def _listed(words: Iterable[str]) -> str:
    known = list(words)
    more = f", and {len(known) - _MOST_NAMED} more" if len(known) > _MOST_NAMED else ""
    return f"{', '.join(known[:_MOST_NAMED])}{more}"


# -- profiles of xe ----------------------------------------------------------------------------------


def plan_profile(inventory: Inventory, card: VgpuCard, intent: Intent) -> Plan:
    """What the PF, or one VF, of an xe card may take. `parameters` are `SCOPE/NAME` and value. Raises BadSpec."""
    wish = intent.vgpu_request
    parameters: Sequence[tuple[str, str]] = wish.parameters if wish else ()
    known = {f"{profile.of}/{name}": text for profile in card.profiles for name, text in profile.values.items()}
    if len({name for name, _ in parameters}) < len(parameters):
        raise BadSpec("the same profile value twice")
    settings = [_profile(card, name, value, known) for name, value in parameters]
    changing = tuple(setting for setting in settings if setting.before != setting.after)
    return Plan.make(
        intent=intent,
        facts=(fact_of(inventory.by_address[PciAddress(card.id)]),),
        changes=(),
        settings=changing,
        steps=steps({}, {}, settings=changing),
        cards=(card.id,),
    )


def _profile(card: VgpuCard, name: str, value: str, known: Mapping[str, str]) -> Setting:
    if name not in known:
        raise BadSpec(
            f"{card.id} has no profile value {name!r}",
            hint=f"it has {', '.join(sorted(known)[:8])}" if known else "only xe cards have profiles",
        )
    scope, _, file = name.partition("/")
    chosen = re.search(r"\[(\w+)\]", known[name])  # `low [normal] high`
    try:
        return Setting(
            kind=SettingKind.PROFILE,
            name=f"/sys/bus/pci/devices/{card.id}/sriov_admin/{scope}/profile/{file}",
            address=PciAddress(card.id),
            before=chosen[1] if chosen else known[name].strip(),
            after=value,
        )
    except ValueError:
        raise BadSpec(f"not a profile value: {value[:40]!r}", hint="a number, or one of the words it shows") from None
