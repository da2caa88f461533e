"""Says no to taking a device that somebody uses, that is wedged, or that is dead. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from vfioctl.binding.model.circumstances import Circumstances
from vfioctl.binding.plan.release import excused
from vfioctl.core.change import Intent, Plan, StepKind, Verb
from vfioctl.core.setting import Setting
from vfioctl.errors import DeviceDead, DeviceInUse
from vfioctl.inventory.model.functions import Function, Inventory, MarkKind
from vfioctl.inventory.model.holders import Holder, HolderKind
from vfioctl.inventory.model.scope import named
from vfioctl.inventory.model.values import PciAddress, Subject

_MOST_NAMED = 4
_ABOUT_VGPUS = (Verb.CREATE, Verb.REMOVE)
"""Changes that a vGPU itself does not stand in the way of."""


def refuse_held(inventory: Inventory, plan: Plan, circumstances: Circumstances) -> Plan:
    """The plan, if nobody uses what it takes from its driver; notes what is forced or may be hidden.

    Raises DeviceInUse with the holders in `facts`.
    """
    if plan.nothing_to_do:
        return plan
    leaving = unbound_by(plan)
    against = holding(circumstances.holders.holders, leaving, plan.intent, plan.settings)
    refuse(against, [inventory.by_address[address] for address in leaving])
    forced = [
        holder
        for holder in circumstances.holders.refusing
        if plan.intent.force_holders and holder.address in leaving and not excused(holder, plan.settings, plan.intent)
    ]
    notes = [f"{h.address} is held by {told(h)}: the kernel may never return (--force-holders)" for h in forced]
    if circumstances.holders.unread:
        some = "1 process" if circumstances.holders.unread == 1 else f"{circumstances.holders.unread} processes"
        notes.append(f"{some} could not be read, and may hold the devices too")
    if circumstances.holders.hidden:
        notes.append(f"processes may be hidden: {circumstances.holders.hidden}")
    return plan.noting(*notes)


def unbound_by(plan: Plan) -> tuple[PciAddress, ...]:
    """The functions that lose their driver, or are reset."""
    taken = [step.address for step in plan.steps if step.kind == StepKind.WRITE and step.target.endswith("/unbind")]
    if plan.reset:
        taken += [change.address for change in plan.changes if change.before.driver]
    return tuple(address for address in taken if isinstance(address, PciAddress))


def holding(
    found: Iterable[Holder], addresses: Iterable[Subject], intent: Intent, settings: Iterable[Setting] = ()
) -> tuple[Holder, ...]:
    """Those of the holders that stand in the way; the `settings` are yet to be made, and make some let go."""
    wanted, settings = set(addresses), tuple(settings)
    return tuple(
        holder
        for holder in found
        if holder.refuses
        and holder.address in wanted
        and not (intent.force_holders and holder.can_be_forced)
        and not excused(holder, settings, intent)
        and not (holder.kind == HolderKind.VGPU and intent.verb in _ABOUT_VGPUS)
    )


def refuse(against: Iterable[Holder], functions: Iterable[Function]) -> None:
    """Raises DeviceInUse when there is a holder."""
    against = tuple(against)
    if not against:
        return
    names: dict[Subject, str] = {function.address: named(function) for function in functions}
    first = [h for h in against if h.address == against[0].address]
    more = len(against) - len(first[:_MOST_NAMED])
    others = f", and {more} more" if more else ""
    raise DeviceInUse(
        f"{names.get(first[0].address, first[0].address)} is held by "
        f"{'; '.join(told(holder) for holder in first[:_MOST_NAMED])}{others}",
        hint=first[0].remedy or "--wait 60s waits until they let go; nothing is ever killed",
        next_command=f"vfioctl holders {first[0].address}",
        facts={"holders": [holder.model_dump(mode="json") for holder in against]},
    )


def told(holder: Holder) -> str:
    """`python (process 4711, alice, docker/0123) with /dev/nvidia3 open`."""
    who = [
        f"process {holder.pid}" if holder.pid is not None else "",
        holder.user or "",
        next(filter(None, (holder.guest and f"guest {holder.guest}", holder.container, holder.unit)), ""),
    ]
    known = ", ".join(filter(None, who))
    place = f": {' '.join(filter(None, (holder.path, holder.how)))}" if holder.path or holder.how else ""
    return f"{holder.name}{f' ({known})' if known else ''}{place}"


def refuse_marked(function: Function) -> None:
    """Raises DeviceInUse for a wedged function, DeviceDead for a dead one."""
    mark = function.mark
    if mark and mark.kind == MarkKind.WEDGED:
        raise DeviceInUse(
            f"{named(function)} is wedged: {mark.why}",
            hint="when what holds it has let go, or after a reboot, recover",
            next_command="vfioctl recover",
        )
    if mark and mark.kind == MarkKind.DEAD:
        raise DeviceDead(
            f"{named(function)} is dead: {mark.why}", hint="a reboot, or power off and on, may bring it back"
        )
