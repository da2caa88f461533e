"""Handing functions to VFIO, and back to the driver they had. Pure; says no before anything is touched."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from vfioctl.binding.model.circumstances import NOTHING_KNOWN, Circumstances
from vfioctl.binding.plan.release import idle_services, to_release, warnings
from vfioctl.binding.plan.steps import Bindings, steps
from vfioctl.core.change import KERNEL_CHOICE, Binding, Change, Intent, Plan, same_driver
from vfioctl.core.setting import Setting
from vfioctl.errors import BadSpec, DeviceInUse, GroupNotViable, NoIommu
from vfioctl.inventory.model.functions import MANAGED_DMA_DRIVERS, Function, Inventory, is_vfio_driver
from vfioctl.inventory.model.refusals import refuse_held, refuse_marked
from vfioctl.inventory.model.scope import Scope, binding_of, fact_of, in_order, named, scope_of
from vfioctl.inventory.model.values import PciAddress


def plan_bind(inventory: Inventory, intent: Intent, circumstances: Circumstances = NOTHING_KNOWN) -> Plan:
    """Cards and groups of the devices, to vfio-pci or the variant driver of each function.

    Raises NoIommu, BadSpec, DeviceInUse, GroupNotViable.
    """
    _check_driver_name(intent.driver)
    if intent.driver and not is_vfio_driver(intent.driver):
        raise BadSpec(
            f"{intent.driver} is not a VFIO driver", hint=f"to give a device to it: vfioctl unbind --to {intent.driver}"
        )
    scope = scope_of(inventory, intent.devices)
    strangers = _blocking(inventory, scope.foreign)
    moving = in_order((*scope.own, *(strangers if intent.with_group else ())))
    _refuse_bind(inventory, intent, scope, moving)
    goals = {a: _vfio_goal(inventory.by_address[a], intent) for a in moving}
    going = [inventory.by_address[a] for a in moving if not inventory.by_address[a].on_vfio]
    changing = [inventory.by_address[a] for a in moving if goals[a] != binding_of(inventory.by_address[a])]
    from_vfio = [function.address for function in changing if function.on_vfio]
    settings = to_release((function.address for function in going), circumstances, from_vfio=from_vfio)
    notes = [
        *(f"{named(inventory.by_address[a])} shares the group and goes with it (--with-group)" for a in strangers),
        *_notes(inventory, scope, moving),
        *warnings(going, settings, circumstances),
        *idle_services(intent, settings),
    ]
    draft = _plan(inventory, intent, scope, goals, notes, settings, viable_groups=scope.groups)
    return refuse_held(inventory, draft, circumstances)


def plan_unbind(
    inventory: Inventory,
    intent: Intent,
    records: Bindings,
    circumstances: Circumstances = NOTHING_KNOWN,
    settings: tuple[Setting, ...] = (),
) -> Plan:
    """Back to the driver and the override that `records` hold; where there is none, the kernel's own choice.

    `settings` are put back with them. `intent.driver` (`--to`) names another driver for the devices asked for.
    Raises BadSpec, DeviceInUse.
    """
    _check_driver_name(intent.driver)
    if intent.driver and is_vfio_driver(intent.driver):
        raise BadSpec(f"{intent.driver} is a VFIO driver", hint=f"use: vfioctl bind --driver {intent.driver}")
    scope = scope_of(inventory, intent.devices)
    _refuse_bridges(inventory, intent)
    _refuse_unanswering(inventory, scope.own)
    _refuse_dark_console(inventory, intent)
    goals = {a: _return_goal(a, intent, records) for a in _returning(inventory, intent, scope, records)}
    chosen = [address for address, goal in goals.items() if goal.driver == KERNEL_CHOICE]
    notes = [
        *(f"{address} has no record here: the kernel chooses its driver" for address in chosen),
        *_notes(inventory, scope, goals),
    ]
    returning = tuple(s for s in settings if s.address in goals)
    return refuse_held(inventory, _plan(inventory, intent, scope, goals, notes, returning), circumstances)


def modules_between(inventory: Inventory, now: Bindings, goals: Bindings) -> tuple[str, ...]:
    """The modules to load before `steps(now, goals)`: those of the drivers that are not registered."""
    modules = []
    for address, goal in goals.items():
        if goal.driver in (None, KERNEL_CHOICE) or now[address].meets(goal):
            continue
        if not any(same_driver(goal.driver, registered) for registered in inventory.drivers):
            modules.extend(_modules_for(inventory.by_address[address], goal.driver or ""))
    return tuple(dict.fromkeys(modules))


def _modules_for(function: Function, driver: str) -> list[str]:
    """A driver that is not registered is named by its module, but for a few whose module is called otherwise."""
    natives = [name for name in function.available_drivers if not is_vfio_driver(name)]
    if is_vfio_driver(driver) or driver in natives or not natives:
        return [driver]
    return natives


# -- what is refused ---------------------------------------------------------------------------------


def _check_driver_name(name: str | None) -> None:
    if name is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", name, re.ASCII):
        raise BadSpec(f"not a driver's name: {name[:40]!r}")


def _refuse_bind(inventory: Inventory, intent: Intent, scope: Scope, moving: Iterable[PciAddress]) -> None:
    _refuse_bridges(inventory, intent)
    if not inventory.iommu.translating:
        raise NoIommu("this host has no IOMMU groups", hint=inventory.iommu.reason)
    _refuse_unanswering(inventory, moving)
    for function in (inventory.by_address[address] for address in moving):
        if function.iommu_group is None:
            raise NoIommu(f"{named(function)} is in no IOMMU group", hint="the IOMMU does not cover it")
        if function.boot_vga and not intent.allow_boot_vga and not function.on_vfio:
            raise DeviceInUse(
                f"{named(function)} is the boot display: the console goes dark without it",
                hint="log in over the network first, then say --allow-boot-vga",
            )
        _refuse_live_vfs(function)
    _refuse_strangers(inventory, intent, scope)


def _refuse_bridges(inventory: Inventory, intent: Intent) -> None:
    for address in intent.devices:
        function = inventory.by_address[address]
        if function.is_bridge:
            raise BadSpec(
                f"{named(function)} is a {function.class_name or 'bridge'}, not an endpoint",
                hint="bridges stay with the host; name the device below it",
            )


def _refuse_unanswering(inventory: Inventory, addresses: Iterable[PciAddress]) -> None:
    for address in addresses:
        refuse_marked(inventory.by_address[address])
        reason = inventory.by_address[address].unknown.get("driver_override")
        if reason:
            raise DeviceInUse(
                f"{named(inventory.by_address[address])} cannot be read: {reason}",
                hint="a change of it is still under way in the kernel, or it needs root",
            )


def _refuse_dark_console(inventory: Inventory, intent: Intent) -> None:
    for function in (inventory.by_address[address] for address in intent.devices if intent.driver):
        if function.boot_vga and function.driver and not function.on_vfio:
            raise DeviceInUse(f"{named(function)} is the boot display and in use", hint="leave it with its driver")


def _refuse_live_vfs(function: Function) -> None:
    if function.virtfns:
        raise DeviceInUse(
            f"{named(function)} has {len(function.virtfns)} live VFs: {', '.join(function.virtfns[:4])}",
            hint=f"vGPUs and guests on them go first, then: vfioctl sriov off {function.address}",
        )


def _blocking(inventory: Inventory, addresses: Iterable[PciAddress]) -> tuple[PciAddress, ...]:
    """Those whose driver keeps their group from a guest; one without a driver does no harm."""
    functions = (inventory.by_address[address] for address in addresses)
    return tuple(f.address for f in functions if f.driver and not f.on_vfio and f.driver not in MANAGED_DMA_DRIVERS)


def _refuse_strangers(inventory: Inventory, intent: Intent, scope: Scope) -> None:
    bridges = [inventory.by_address[address] for address in _blocking(inventory, scope.bridges)]
    if bridges:
        raise GroupNotViable(
            f"IOMMU group {bridges[0].iommu_group} also holds {'; '.join(named(f) for f in bridges)}",
            hint="the kernel gives a guest no group with such a driver in it, and the host needs it: use another slot",
            facts={"strangers": [f.address for f in bridges]},
        )
    strangers = [inventory.by_address[address] for address in _blocking(inventory, scope.foreign)]
    if strangers and not intent.with_group:
        raise GroupNotViable(
            f"IOMMU group {strangers[0].iommu_group} also holds {'; '.join(named(f) for f in strangers)}",
            hint="a guest owns a group whole: --with-group takes them from the host too, if nothing there uses them",
            facts={"strangers": [f.address for f in strangers]},
        )


# -- goals -------------------------------------------------------------------------------------------


def _vfio_goal(function: Function, intent: Intent) -> Binding:
    own = intent.driver if function.address in intent.devices else None
    now = binding_of(function)
    if function.on_vfio and (own is None or same_driver(own, function.driver)):
        return now
    driver = own or next((name for name in function.available_drivers if is_vfio_driver(name)), "vfio-pci")
    return Binding(driver=driver, driver_override=driver)


def _returning(inventory: Inventory, intent: Intent, scope: Scope, records: Bindings) -> tuple[PciAddress, ...]:
    """What goes back: what VFIO has of the card, driverless functions asked for, strangers that came along."""
    chosen = []
    for address in (*scope.own, *scope.foreign):
        function = inventory.by_address[address]
        ours = address in scope.own or address in records or intent.with_group
        waiting = function.driver is None and (address in records or (address in scope.asked and _has_native(function)))
        retargeted = address in scope.asked and intent.driver is not None
        if ours and (function.on_vfio or waiting or retargeted):
            chosen.append(address)
    return in_order(chosen)


def _has_native(function: Function) -> bool:
    return any(not is_vfio_driver(name) for name in function.available_drivers)


def _return_goal(address: PciAddress, intent: Intent, records: Bindings) -> Binding:
    if intent.driver and address in intent.devices:
        return Binding(driver=intent.driver, driver_override=None)
    return records.get(address) or Binding(driver=KERNEL_CHOICE, driver_override=None)


# -- the document ------------------------------------------------------------------------------------


def _notes(inventory: Inventory, scope: Scope, moving: Iterable[PciAddress]) -> Iterable[str]:
    left = [a for a in scope.foreign if a not in set(moving)]
    yield from (f"{named(inventory.by_address[a])} shares the group and is left as it is" for a in left)
    yield from (f"{named(inventory.by_address[a])} is a bridge and stays with the host" for a in scope.bridges)


def _plan(
    inventory: Inventory,
    intent: Intent,
    scope: Scope,
    goals: Mapping[PciAddress, Binding],
    notes: Iterable[str],
    settings: tuple[Setting, ...],
    viable_groups: tuple[int, ...] = (),
) -> Plan:
    now = {address: binding_of(inventory.by_address[address]) for address in goals}
    settled = all(now[address].settled(goal) for address, goal in goals.items())
    made = () if settled else settings
    modules = modules_between(inventory, now, goals)
    todo = steps(now, goals, modules, settings=made)
    return Plan.make(
        intent=intent,
        facts=tuple(fact_of(inventory.by_address[address]) for address in scope.everything),
        changes=tuple(
            Change(address=a, before=now[a], after=goal) for a, goal in goals.items() if not now[a].settled(goal)
        ),
        settings=made,
        steps=todo,
        viable_groups=viable_groups if todo else (),
        notes=tuple(notes),
    )
