"""Preconditions of taking a device: no holders, neither wedged nor dead, of use to a guest. May not do I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from vfioctl.core.marks import MarkKind
from vfioctl.errors import DeviceDead, DeviceInUse, HostError
from vfioctl.inventory.model.functions import Function, Inventory
from vfioctl.inventory.model.holders import Holder, HolderKind, Holders
from vfioctl.inventory.model.scope import named
from vfioctl.inventory.model.values import PciAddress

if TYPE_CHECKING:
    from vfioctl.core.change import Intent

_MOST_NAMED, _MOST_REMEDIES = 4, 8
_NO_REMEDY = "--wait 60s waits until they release it; no process is ever killed"


def holding(
    found: Iterable[Holder],
    subjects: Iterable[str],
    intent: Intent,
    excused: Callable[[Holder], bool] = lambda _: False,
) -> tuple[Holder, ...]:
    """Return the holders that block the intent. `excused`: whether the change makes a holder release its device."""
    from vfioctl.inventory.model.exclusive_intent import TakesDevices

    wanted = set(subjects)
    forced = isinstance(intent, TakesDevices) and intent.force_holders
    ignored = ignored_by(intent)
    return tuple(
        holder
        for holder in found
        if holder.refuses
        and holder.address in wanted
        and not (forced and holder.can_be_forced)
        and not excused(holder)
        and holder.kind not in ignored
    )


def ignored_by(intent: Intent) -> frozenset[HolderKind]:
    """Return the kinds of holders that do not block the intent, such as the vGPU that it removes."""
    from vfioctl.inventory.model.exclusive_intent import MeetsHolders, TakesDevices

    ignored = intent.ignores if isinstance(intent, MeetsHolders) else frozenset()
    # who cannot force it must not be stopped by a doubt
    return ignored if isinstance(intent, TakesDevices) else ignored | {HolderKind.UNREAD}


def unread_notes(holders: Holders) -> tuple[str, ...]:
    """Return notes for a plan about processes that could not be read."""
    notes = []
    if holders.unread:
        some = "1 process" if holders.unread == 1 else f"{holders.unread} processes"
        notes.append(f"{some} could not be read, and may hold the devices too")
    if holders.hidden:
        notes.append(f"processes may be hidden: {holders.hidden}")
    if holders.unknown:
        notes.append(f"whether a process holds the devices is unknown: {holders.unknown}")
    return tuple(notes)


def refuse(against: Iterable[Holder], functions: Iterable[Function]) -> None:
    """Raise DeviceInUse if `against` holds any holder. `functions` supply the devices' names."""
    against = tuple(against)
    if not against:
        return
    names: dict[str, str] = {function.address: named(function) for function in functions}
    first = [h for h in against if h.address == against[0].address]
    more = len(against) - len(first[:_MOST_NAMED])
    others = f", and {more} more" if more else ""
    raise DeviceInUse(
        f"{names.get(first[0].address, first[0].address)} {_verb(first)} held by "
        f"{'; '.join(holder.words for holder in first[:_MOST_NAMED])}{others}",
        hint=_remedies(against),
        next_command=f"vfioctl holders {first[0].address}",
        facts={"holders": [asdict(holder) for holder in against]},
    )


def _verb(holders: Iterable[Holder]) -> str:
    return "may be" if all(holder.kind == HolderKind.UNREAD for holder in holders) else "is"


def _remedies(against: Sequence[Holder]) -> str:
    """Return the remedy for each holder, each once, one on a line."""
    first = {holder.remedy: holder for holder in reversed(against) if holder.remedy}
    remedies = dict.fromkeys(holder.remedy for holder in against if holder.remedy)
    known = tuple(remedies) if len(remedies) < 2 else tuple(f"{first[r].short}: {r}" for r in remedies)
    if _verb(against) == "may be":
        known = (*known[: _MOST_REMEDIES - 1], "--force-holders continues although it is unknown what they have open")
    rest = [f"and {len(known) - _MOST_REMEDIES} more"] if len(known) > _MOST_REMEDIES else []
    return "\n".join((*known[:_MOST_REMEDIES], *rest)) or _NO_REMEDY


def refuse_marked(function: Function) -> None:
    """Raise DeviceInUse if the function is wedged, DeviceDead if it is dead."""
    mark = function.mark
    if mark and mark.kind == MarkKind.WEDGED:
        raise DeviceInUse(
            f"{named(function)} is wedged: {mark.why}",
            hint="run recover when the holder has released it, or after a reboot",
            next_command="vfioctl recover",
        )
    if mark and mark.kind == MarkKind.DEAD:
        raise DeviceDead(
            f"{named(function)} is dead: {mark.why}", hint="a reboot, or power off and on, may bring it back"
        )


def refuse_unread(address: PciAddress, inventory: Inventory) -> None:
    """Raise HostError, with the reason, for a function that is there and could not be read."""
    if why := inventory.unread.get(address):
        raise HostError(f"{address} is there, and is not read: {why}", hint="try again when the host is less busy")


def why_no_vgpu(function: Function) -> str:
    """Return why a VF of NVIDIA's driver that is no vGPU is of no use to a guest; empty for other functions."""
    return f"{function.address} is no vGPU: NVIDIA's driver has it, without a type" if function.lacks_vgpu else ""


def command_for(function: Function) -> str:
    """Return the command that gives such a VF a type."""
    return f"vfioctl vgpu create TYPE --parent {function.address}"


def refuse_untyped(functions: Iterable[Function]) -> None:
    """Raise HostError for the first of these functions that is a VF without a type."""
    for function in functions:
        if why := why_no_vgpu(function):
            hint = "a guest could not use it: on VFIO, a VF of NVIDIA's is no GPU"
            raise HostError(why, hint=hint, next_command=command_for(function))
