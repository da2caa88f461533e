"""Precondition: no holder uses the functions to be moved. May not do input or output."""

from __future__ import annotations

from vfioctl.binding.model.binding import Binding
from vfioctl.binding.model.conditions import Circumstances
from vfioctl.binding.plan.release import excused_by
from vfioctl.core.change import Change, Draft
from vfioctl.inventory.model.exclusive_intent import TakesDevices
from vfioctl.inventory.model.functions import Inventory
from vfioctl.inventory.model.preconditions import holding, refuse, unread_notes
from vfioctl.inventory.model.values import PciAddress


def refuse_held(
    inventory: Inventory, draft: Draft, circumstances: Circumstances, stop_services: tuple[str, ...] = ()
) -> Draft:
    """Return the draft with notes about forced and unknown holders.

    Raises DeviceInUse, with the holders in `facts`, if a function that loses its driver is in use.
    """
    if not draft.changes:
        return draft
    leaving = unbound_by(draft.changes)
    holders, excused = circumstances.holders, excused_by(draft.changes, stop_services)
    against = holding(holders.holders, leaving, draft.intent, excused)
    refuse(against, [inventory.by_address[address] for address in leaving])
    forced = [
        holder
        for holder in holders.refusing
        if isinstance(draft.intent, TakesDevices)
        and draft.intent.force_holders
        and holder.address in leaving
        and not excused(holder)
    ]
    notes = [f"{h.address} is held by {h.words}: the kernel may never return (--force-holders)" for h in forced]
    return draft.noting(*notes, *unread_notes(holders))


def unbound_by(changes: tuple[Change, ...]) -> tuple[PciAddress, ...]:
    """Return the functions that lose their driver or are reset while bound."""
    reset = any(change.kind == "reset" for change in changes)
    return tuple(PciAddress(c.subject) for c in changes if c.kind == "binding" and (reset or _leaves(c)) and _bound(c))


def _leaves(change: Change) -> bool:
    before, after = Binding.parse(change.before), Binding.parse(change.after)
    return before.moves(after) and not before.settled(after)


def _bound(change: Change) -> bool:
    return Binding.parse(change.before).driver is not None
