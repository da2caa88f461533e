"""Preconditions of moving functions: what refuses a bind, an unbind or a reset. May not do input or output."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from vfioctl.binding.model.binding import Binding, Bindings, same_driver
from vfioctl.binding.model.conditions import Circumstances
from vfioctl.binding.model.intents import BindIntent, UnbindIntent
from vfioctl.binding.plan.release import excused_by
from vfioctl.core.change import Change, Draft
from vfioctl.errors import BadSpec, DeviceInUse, GroupNotViable, NoIommu, some_of
from vfioctl.inventory.model.exclusive_intent import TakesDevices
from vfioctl.inventory.model.functions import MANAGED_DMA_DRIVERS, Function, Inventory, is_vfio_driver
from vfioctl.inventory.model.preconditions import holding, refuse, refuse_marked, unread_notes
from vfioctl.inventory.model.scope import Scope, in_order, named
from vfioctl.inventory.model.values import PciAddress


def refuse_bind(inventory: Inventory, intent: BindIntent, scope: Scope, moving: Sequence[Function]) -> None:
    """Raise BadSpec, NoIommu, DeviceInUse, DeviceDead or GroupNotViable if a guest could not own the devices."""
    _refuse_driver(intent)
    _refuse_bridges(inventory, intent)
    if not inventory.iommu.translating:
        raise NoIommu("this host has no IOMMU groups", hint=inventory.iommu.reason)
    _refuse_unanswering(moving)
    for function in moving:
        if function.iommu_group is None:
            raise NoIommu(f"{named(function)} is in no IOMMU group", hint="the IOMMU does not cover it")
        if function.boot_vga and not intent.allow_boot_vga and not function.on_vfio:
            raise DeviceInUse(
                f"{named(function)} is the boot display: the console goes dark without it",
                hint="log in over the network first, then give --allow-boot-vga",
            )
        if function.virtfns:
            way = f"vfioctl sriov off {function.address} (with --foreign if vfioctl did not create them)"
            if function.driver == "gim":
                way = "unload gim: it creates its VFs when it is loaded"
            raise DeviceInUse(
                f"{named(function)} has {len(function.virtfns)} live VFs: {some_of(function.virtfns)}",
                hint=f"vGPUs and guests on them go first, then {way}",
            )
    _refuse_unread(inventory, scope)
    _refuse_strangers(inventory, intent, scope)


def _refuse_unread(inventory: Inventory, scope: Scope) -> None:
    """Refuse while a member of the groups or of the cards could not be read: it may be in use by the host."""
    unread = in_order(a for own in scope.own for a in inventory.unread_beside(inventory.by_address[own]))
    if unread:
        raise GroupNotViable(
            f"{', '.join(unread)} could not be read, so it is unknown whether a guest could own the group",
            hint="inventory says why it could not be read",
            next_command="vfioctl inventory --all",
            facts={"unread": list(unread)},
        )


def _refuse_strangers(inventory: Inventory, intent: BindIntent, scope: Scope) -> None:
    needed = "the kernel gives a guest no group with such a driver in it, and the host needs it: use another slot"
    shared = "a guest owns a group whole: --with-group takes them from the host too, if nothing there uses them"
    for addresses, hint in ((scope.bridges, needed), (() if intent.with_group else scope.foreign, shared)):
        if strangers := blocking(inventory, addresses):
            raise GroupNotViable(
                f"IOMMU group {strangers[0].iommu_group} also holds {'; '.join(named(f) for f in strangers)}",
                hint=hint,
                facts={"strangers": [f.address for f in strangers]},
            )


def blocking(inventory: Inventory, addresses: Iterable[PciAddress]) -> list[Function]:
    """Return the functions whose driver makes their group not viable; functions without a driver do not."""
    functions = (inventory.by_address[address] for address in addresses)
    return [f for f in functions if f.driver and not f.on_vfio and f.driver not in MANAGED_DMA_DRIVERS]


def _refuse_bridges(inventory: Inventory, intent: BindIntent | UnbindIntent) -> None:
    for function in (inventory.by_address[address] for address in intent.devices):
        if function.is_bridge:
            raise BadSpec(
                f"{named(function)} is a {function.class_name or 'bridge'}, not an endpoint",
                hint="bridges stay with the host; name the device below it",
            )


def _refuse_unanswering(functions: Iterable[Function]) -> None:
    for function in functions:
        refuse_marked(function)
        if reason := function.unknown.get("driver_override"):
            raise DeviceInUse(
                f"{named(function)} cannot be read: {reason}",
                hint="a change of it is still under way in the kernel, or it needs root",
            )


def refuse_unbind(
    inventory: Inventory,
    intent: UnbindIntent,
    scope: Scope,
    returning: Iterable[PciAddress],
    records: Bindings,
    circumstances: Circumstances,
) -> None:
    """Raise BadSpec, DeviceInUse or DeviceDead if the devices cannot go to their drivers."""
    _refuse_driver(intent)
    _refuse_bridges(inventory, intent)
    _refuse_unanswering(inventory.by_address[address] for address in scope.own)
    _refuse_unable(inventory, intent, records, circumstances)
    for function in (inventory.by_address[address] for address in returning):
        if function.boot_vga and function.driver and not function.on_vfio:
            raise DeviceInUse(f"{named(function)} is the boot display and in use", hint="leave it with its driver")


def _refuse_driver(intent: BindIntent | UnbindIntent) -> None:
    name = intent.driver
    if name is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", name, re.ASCII):
        raise BadSpec(f"not a driver's name: {name[:40]!r}", hint="ls /sys/bus/pci/drivers lists those that are there")
    if name and is_vfio_driver(name) != isinstance(intent, BindIntent):
        wrong, verb, option = ("is a", "bind", "--driver") if is_vfio_driver(name) else ("is not a", "unbind", "--to")
        raise BadSpec(
            f"{name} {wrong} VFIO driver",
            hint=f"to give a device to it, use {verb}",
            next_command=f"vfioctl {verb} {' '.join(intent.devices)} {option} {name}",
        )


def _refuse_unable(inventory: Inventory, intent: UnbindIntent, records: Bindings, known: Circumstances) -> None:
    """Refuse a driver that cannot take a device asked for, before modules are loaded: they would stay loaded."""
    driver = intent.driver
    if not driver:
        return
    registered = _is_among(driver, inventory.drivers)
    if registered and not known.selective:
        return
    for function in (inventory.by_address[address] for address in intent.devices):
        natives = [name for name in function.available_drivers if not is_vfio_driver(name)]
        before = records.get(function.address)
        if not _is_among(driver, (*natives, function.driver, before and before.driver)):
            raise BadSpec(
                f"{driver} cannot take {named(function)}: "
                + ("its aliases do not match the device" if registered else "no driver or module of that name matches"),
                hint=f"drivers that can: {', '.join(natives) or 'none in modules.alias'}. To use a driver that takes "
                "any device, such as pci-stub, load its module first",
                facts={"drivers": natives},
            )


def _is_among(driver: str, names: Iterable[str | None]) -> bool:
    return any(same_driver(driver, name) for name in names)


def refuse_held(
    inventory: Inventory, draft: Draft, circumstances: Circumstances, stop_services: tuple[str, ...] = ()
) -> Draft:
    """Return the draft, with notes about holders. Raises DeviceInUse if a function that loses its driver is in use."""
    if not draft.changes:
        return draft
    leaving = unbound_by(draft.changes)
    holders, excused = circumstances.holders, excused_by(draft.changes, stop_services)
    against = holding(holders.holders, leaving, draft.intent, excused)
    refuse(against, [inventory.by_address[address] for address in leaving])
    may_force = isinstance(draft.intent, TakesDevices) and draft.intent.force_holders
    forced = [h for h in holders.refusing if may_force and h.address in leaving and not excused(h)]
    notes = [f"{h.address} is held by {h.words}: the kernel may never return (--force-holders)" for h in forced]
    return draft.noting(*notes, *unread_notes(holders))


def unbound_by(changes: tuple[Change, ...]) -> tuple[PciAddress, ...]:
    """Return the functions that lose their driver or are reset while bound."""
    reset = any(change.kind == "reset" for change in changes)
    leaving = []
    for change in changes:
        before, after = Binding.parse(change.before), Binding.parse(change.after)
        loses = reset or (before.moves(after) and not before.settled(after))
        if change.kind == "binding" and before.driver and loses:
            leaving.append(PciAddress(change.subject))
    return tuple(leaving)
