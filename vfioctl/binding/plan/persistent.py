"""Adds to a plan what binds devices at each boot, or removes it. May not do input or output."""

from __future__ import annotations

from collections.abc import Sequence

from vfioctl.binding.model.binding import Bindings
from vfioctl.binding.model.conditions import Circumstances
from vfioctl.binding.model.definition import DeviceDefinition, defined, persistent_changes
from vfioctl.core.change import Change, Draft
from vfioctl.errors import DeviceInUse
from vfioctl.inventory.model.functions import Function, Inventory
from vfioctl.inventory.model.holders import HolderKind
from vfioctl.inventory.model.scope import named
from vfioctl.inventory.model.values import PciAddress

_NEEDED = {HolderKind.DISK: "the disk", HolderKind.NETWORK: "the network interface"}


def bound_at_boot(inventory: Inventory, draft: Draft, goals: Bindings, circumstances: Circumstances) -> Draft:
    """Return the draft with the definition and the udev rule of each function that it binds.

    Raises DeviceInUse for a disk or a network interface in use, which the next boot would need too, whatever forces
    the change now."""
    for holder in circumstances.holders.holders:
        if holder.kind in _NEEDED and holder.address in goals:
            raise DeviceInUse(
                f"{holder.address} has {_NEEDED[holder.kind]} {holder.words}: the next boot may need it",
                hint="without --persistent it is bound until the next boot only",
            )
    changes, notes = [], []
    for address, goal in goals.items():
        function = inventory.by_address[address]
        texts = circumstances.at_boot.get(address, ("", ""))
        wanted = defined(inventory, function, str(goal.driver), texts[0])
        changes += persistent_changes(address, texts, wanted)
        notes += _notes(function, wanted)
    for address, texts in circumstances.moved.items():
        if address not in goals:
            changes += persistent_changes(address, texts, None)
            notes.append(f"the definition of {address} is about the same device, and is removed")
    return _with(draft, changes, notes)


def _notes(function: Function, wanted: DeviceDefinition) -> list[str]:
    if function.boot_vga:
        return [f"{named(function)} is the boot display: the console stays dark from the next boot on"]
    if wanted.identity.twins:
        return [f"{named(function)} has twins here: at boot it is known by its slot, {wanted.identity.path}"]
    return []


def own_driver_at_boot(
    draft: Draft, addresses: Sequence[PciAddress], circumstances: Circumstances, *, forget: bool
) -> Draft:
    """Return the draft with these functions' definitions and udev rules removed, or with a note that they stay."""
    kept = {address: texts for address in addresses if any(texts := circumstances.at_boot.get(address, ("", "")))}
    if not forget:
        return draft.noting(*(f"{address} is bound at the next boot again (--persistent: not)" for address in kept))
    changes = [change for address, texts in kept.items() for change in persistent_changes(address, texts, None)]
    return _with(draft, changes, ())


def _with(draft: Draft, changes: Sequence[Change], notes: Sequence[str]) -> Draft:
    return Draft(draft.intent, draft.facts, (*draft.changes, *changes), draft.checks, (*draft.notes, *notes))
