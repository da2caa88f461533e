"""Plans binding functions to VFIO and back, and verifies the preconditions. May not do input or output."""

from __future__ import annotations

from collections.abc import Iterable

from vfioctl.binding.checks import ANSWERS, VIABLE
from vfioctl.binding.model.binding import KERNEL_CHOICE, Binding, Bindings, binding_of, same_driver
from vfioctl.binding.model.conditions import NOTHING_KNOWN, Circumstances
from vfioctl.binding.model.intents import BindIntent, UnbindIntent
from vfioctl.binding.plan.persistent import bound_at_boot, own_driver_at_boot
from vfioctl.binding.plan.preconditions import blocking, refuse_bind, refuse_held, refuse_unbind
from vfioctl.binding.plan.release import idle_services, to_release, warnings
from vfioctl.binding.resources.driver import binding_change, driver_to_load, module_change, modules_for
from vfioctl.core.change import Change, CheckRequest, Draft, Intent
from vfioctl.inventory.model.functions import Function, Inventory, is_vfio_driver
from vfioctl.inventory.model.scope import Scope, function_fact, in_order, named, scope_of
from vfioctl.inventory.model.values import PciAddress


def plan_bind(inventory: Inventory, intent: BindIntent, circumstances: Circumstances = NOTHING_KNOWN) -> Draft:
    """Plan binding cards to VFIO drivers. Raises NoIommu, BadSpec, DeviceInUse, DeviceDead, GroupNotViable."""
    scope = scope_of(inventory, intent.devices)
    strangers = blocking(inventory, scope.foreign)
    along = [function.address for function in strangers if intent.with_group]
    moving = [inventory.by_address[address] for address in in_order((*scope.own, *along))]
    refuse_bind(inventory, intent, scope, moving)
    goals = {function.address: _vfio_goal(function, intent, inventory.drivers) for function in moving}
    going = [function for function in moving if not function.on_vfio]
    from_vfio = [f.address for f in moving if f.on_vfio and goals[f.address] != binding_of(f)]
    settings = to_release((function.address for function in going), circumstances, from_vfio=from_vfio)
    notes = [
        *(f"{named(function)} shares the group and goes with it (--with-group)" for function in strangers),
        *_notes(inventory, scope, goals),
        *warnings(going, settings, circumstances),
        *idle_services(intent.stop_services, settings),
    ]
    viable = CheckRequest(kind=VIABLE, subjects=tuple(map(str, scope.groups)))
    draft = _draft(inventory, intent, scope, goals, notes, settings, viable)
    draft = refuse_held(inventory, draft, circumstances, intent.stop_services)
    return bound_at_boot(inventory, draft, goals, circumstances) if intent.persistent else draft


def plan_unbind(
    inventory: Inventory,
    intent: UnbindIntent,
    records: Bindings,
    circumstances: Circumstances = NOTHING_KNOWN,
    settings: tuple[Change, ...] = (),
) -> Draft:
    """Plan restoring the drivers and overrides in `records`; without a record, the kernel chooses the driver.

    `settings` are restored too. `intent.driver` (`--to`) names another driver for the devices asked for.
    Raises BadSpec, DeviceInUse."""
    scope = scope_of(inventory, intent.devices)
    returning = _returning(inventory, intent, scope, records)
    refuse_unbind(inventory, intent, scope, returning, records, circumstances)
    goals = {a: _return_goal(a, intent, records, inventory.drivers) for a in returning}
    chosen = [address for address, goal in goals.items() if goal.driver == KERNEL_CHOICE]
    notes = [
        *(f"{address} has no record here: the kernel chooses its driver" for address in chosen),
        *_notes(inventory, scope, goals),
    ]
    # NVML needs the GPU on the nvidia driver
    native = {a for a, goal in goals.items() if goal.driver in ("nvidia", KERNEL_CHOICE)}
    settings = tuple(s for s in settings if s.subject in (native if s.kind == "persistence" else goals))
    answers = CheckRequest(kind=ANSWERS, subjects=tuple(goals))
    draft = refuse_held(inventory, _draft(inventory, intent, scope, goals, notes, settings, answers), circumstances)
    return own_driver_at_boot(draft, in_order({*scope.own, *goals}), circumstances, forget=intent.persistent)


def _vfio_goal(function: Function, intent: BindIntent, registered: Iterable[str]) -> Binding:
    own = intent.driver if function.address in intent.devices else None
    now = binding_of(function)
    if function.on_vfio and (own is None or same_driver(own, function.driver)):
        return now
    driver = own or next((name for name in function.available_drivers if is_vfio_driver(name)), "vfio-pci")
    name, spellings = _spelled(driver, registered)
    return Binding(name, name, spellings)


def _spelled(driver: str, registered: Iterable[str]) -> tuple[str, tuple[str, ...]]:
    """Return a driver's name as registered, or the expected name and the alternatives."""
    for name in registered:
        if same_driver(name, driver):
            return name, ()
    if driver == "vfio-pci":
        return driver, ()
    others = dict.fromkeys((driver.replace("_", "-"), driver.replace("-", "_")))
    return driver, tuple(name for name in others if name != driver)


def _returning(inventory: Inventory, intent: UnbindIntent, scope: Scope, records: Bindings) -> tuple[PciAddress, ...]:
    """Return what to unbind: the card's functions on VFIO, named ones without a driver, group members bound along."""
    chosen = []
    for address in (*scope.own, *scope.foreign):
        function = inventory.by_address[address]
        ours = address in scope.own or address in records or intent.with_group
        has_native = not all(map(is_vfio_driver, function.available_drivers))
        waiting = function.driver is None and (address in records or (address in scope.asked and has_native))
        before = records.get(address)
        # `unbind --to` gave it to another native driver than it had before `bind`
        lent = before is not None and before.driver is not None and function.driver not in (None, before.driver)
        retargeted = address in scope.asked and (intent.driver is not None or lent)
        if ours and (function.on_vfio or waiting or retargeted):
            chosen.append(address)
    return in_order(chosen)


def _return_goal(address: PciAddress, intent: UnbindIntent, records: Bindings, registered: Iterable[str]) -> Binding:
    if intent.driver and address in intent.devices:
        name, spellings = _spelled(intent.driver, registered)
        return Binding(name, None, spellings)
    return records.get(address) or Binding(KERNEL_CHOICE, None)


def _notes(inventory: Inventory, scope: Scope, moving: Iterable[PciAddress]) -> Iterable[str]:
    left = [a for a in scope.foreign if a not in set(moving)]
    yield from (f"{named(inventory.by_address[a])} shares the group and is left as it is" for a in left)
    yield from (f"{named(inventory.by_address[a])} is a bridge and stays with the host" for a in scope.bridges)


def _draft(
    inventory: Inventory,
    intent: Intent,
    scope: Scope,
    goals: Bindings,
    notes: Iterable[str],
    settings: tuple[Change, ...],
    check: CheckRequest,
) -> Draft:
    now = {address: binding_of(inventory.by_address[address]) for address in goals}
    moving = [address for address, goal in goals.items() if not now[address].settled(goal)]
    changes = (
        *_modules(inventory, {address: now[address] for address in moving}, goals),
        *(settings if moving else ()),
        *(binding_change(address, now[address], goals[address]) for address in moving),
    )
    facts = tuple(function_fact(inventory.by_address[address]) for address in scope.everything)
    checks = (check,) if changes else ()
    return Draft(intent=intent, facts=facts, changes=changes, checks=checks, notes=tuple(notes))


def _modules(inventory: Inventory, now: Bindings, goals: Bindings) -> Iterable[Change]:
    needed: dict[str, PciAddress] = {}
    for address, binding in now.items():
        driver = driver_to_load(binding, goals[address], inventory.drivers)
        if driver is not None:
            for name in modules_for(driver, inventory.by_address[address].available_drivers):
                needed.setdefault(name, address)
    return [module_change(name, address) for name, address in needed.items()]
