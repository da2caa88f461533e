"""The intents of binding: bind, unbind, reset, rom. One frozen class per verb. May not do input or output."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from vfioctl.binding.model.binding import Binding, binding_in, same_driver
from vfioctl.binding.model.definition import DEFINITION, RULE
from vfioctl.console.words import listed
from vfioctl.core.change import Change, Intent, Plan
from vfioctl.inventory.model.exclusive_intent import TakesDevices
from vfioctl.inventory.model.scope import FUNCTION
from vfioctl.inventory.model.values import PciAddress

_SETTINGS = frozenset({"service", "persistence", "console", "framebuffer", "d3cold", "power", "lock"})
_NOT_BY_ONE = "no single command: the functions of these cards are on VFIO in part"
_OPTIONS = ("with_group", "allow_boot_vga", "force_holders", "persistent")
_AT_BOOT = frozenset({DEFINITION, RULE})
_MOVING = frozenset({"module", "binding"}) | _SETTINGS | _AT_BOOT


class BindIntent(TakesDevices):
    """Bind devices to vfio-pci or to their VFIO variant driver."""

    done: ClassVar[str] = "bound"

    verb: Literal["bind"] = "bind"
    devices: tuple[PciAddress, ...]
    driver: str | None = Field(default=None, description="--driver")
    with_group: bool = False
    allow_boot_vga: bool = False
    persistent: bool = Field(default=False, description="at each boot too")
    stop_services: tuple[str, ...] = Field(default=(), description="units that may be stopped when they hold a device")

    def title(self) -> str:
        return _title(self, f"to {self.driver}" if self.driver else "")

    def permits(self, plan: Plan) -> bool:
        """Return whether the plan moves only devices among its facts, and stops only the named services."""
        services = plan.changes_of("service")
        return (
            _moves_what_it_knows(plan)
            and {change.name for change in services} <= set(self.stop_services)
            and all(change.after == "inactive" for change in services)
            and _loads_what_it_binds(plan)
            and _verifies_its_groups(plan)
            and (self.persistent or not plan.changes_of(*_AT_BOOT))
        )

    def undone_by(self, plan: Plan) -> tuple[str, ...]:
        before = _before(plan)
        if not before and plan.changes_of(*_AT_BOOT):
            return (f"vfioctl persist remove {' '.join(self.devices)}",)
        if before and all(binding.on_vfio for binding in before.values()):
            return _bound_again(before, self.devices)
        if any(binding_in(fact).on_vfio for fact in plan.facts_of(FUNCTION)):
            return (_NOT_BY_ONE,)
        more = " --persistent" if plan.changes_of(*_AT_BOOT) else ""
        return (
            f"vfioctl unbind {' '.join(self.devices)}{more}",
            "which restores the values recorded before the first step",
        )


class UnbindIntent(TakesDevices):
    """Return devices to their previous drivers, or to another driver."""

    done: ClassVar[str] = "unbound"

    verb: Literal["unbind"] = "unbind"
    devices: tuple[PciAddress, ...]
    driver: str | None = Field(default=None, description="--to")
    with_group: bool = False
    persistent: bool = Field(default=False, description="at each boot too")

    def title(self) -> str:
        return _title(self, f"to {self.driver}" if self.driver else "")

    def permits(self, plan: Plan) -> bool:
        """Return whether the plan moves only devices among its facts, and stops no service."""
        stops = any("inactive" in (c.after, c.during) for c in plan.changes_of("service"))
        forgets = all(self.persistent and not change.after for change in plan.changes_of(*_AT_BOOT))
        return _moves_what_it_knows(plan) and not stops and forgets

    def undone_by(self, plan: Plan) -> tuple[str, ...]:
        before = _before(plan)
        more = " --persistent" if plan.changes_of(*_AT_BOOT) else ""
        if all(binding.on_vfio for binding in before.values()) and not _left_native(plan, self.devices):
            own = {address.slot for address in self.devices}
            others = {PciAddress(address).slot for address in before} - own
            return tuple(line + more for line in _bound_again(before, self.devices, with_group=bool(others)))
        if all(binding.driver and not binding.on_vfio for binding in before.values()):
            return tuple(f"vfioctl unbind {address} --to {binding.driver}" for address, binding in before.items())
        return (_NOT_BY_ONE,)


class ResetIntent(TakesDevices):
    """Reset one device."""

    done: ClassVar[str] = "reset"

    verb: Literal["reset"] = "reset"
    devices: tuple[PciAddress, ...]
    method: str | None = Field(default=None, description="flr, bus, pm, ...")

    def title(self) -> str:
        return _title(self, f"by {self.method}" if self.method else "")

    def permits(self, plan: Plan) -> bool:
        """Return whether the plan resets only the device asked for, and moves none."""
        allowed = {"binding", "reset method", "reset"}
        resets = plan.changes_of("reset")
        known = {change.subject for change in plan.changes_of("binding")}
        return (
            {change.kind for change in plan.changes} <= allowed
            and all(set(change.after.split()) == known for change in resets)
            and all(change.before == change.after for change in plan.changes_of("binding"))
            and begins_at_its_facts(plan)
            and len(resets) <= 1
            and all(change.subject in self.devices for change in (*resets, *plan.changes_of("reset method")))
        )


class RomIntent(Intent):
    """Enable one device's expansion ROM, read it, and disable it."""

    done: ClassVar[str] = "read"

    verb: Literal["rom"] = "rom"
    devices: tuple[PciAddress, ...]

    def title(self) -> str:
        return f"rom {' '.join(self.devices)}"

    def permits(self, plan: Plan) -> bool:
        return all(change.kind == "rom" and change.subject in self.devices for change in plan.changes)


def _title(intent: BindIntent | UnbindIntent | ResetIntent, goal: str) -> str:
    options = (f"--{name.replace('_', '-')}" for name in _OPTIONS if getattr(intent, name, False))
    return " ".join(filter(None, (intent.verb, listed(intent.devices), goal, *options)))


def _before(plan: Plan) -> dict[str, Binding]:
    return {change.subject: Binding.parse(change.before) for change in plan.changes_of("binding")}


def _left_native(plan: Plan, devices: tuple[PciAddress, ...]) -> bool:
    """Return whether the plan leaves alone a function of these cards that `bind` would take from its driver."""
    slots, moved = {address.slot for address in devices}, set(plan.subjects)
    others = [fact for fact in plan.facts_of(FUNCTION) if fact.subject not in moved]
    return any(PciAddress(fact.subject).slot in slots and not binding_in(fact).on_vfio for fact in others)


def _bound_again(
    before: dict[str, Binding], devices: tuple[PciAddress, ...], *, with_group: bool = False
) -> tuple[str, ...]:
    drivers = {address: binding.driver for address, binding in before.items()}
    asked = {driver: [d for d in devices if drivers.get(d) == driver] for driver in drivers.values()}
    more = " --with-group" if with_group else ""
    return tuple(f"vfioctl bind {' '.join(those)} --driver {driver}{more}" for driver, those in asked.items() if those)


def _moves_what_it_knows(plan: Plan) -> bool:
    known = {fact.subject for fact in plan.facts_of(FUNCTION)}
    return (
        {change.kind for change in plan.changes} <= _MOVING
        and all(change.subject in known or _forgets(change) for change in plan.changes)
        and begins_at_its_facts(plan)
    )


def _forgets(change: Change) -> bool:
    return change.kind in _AT_BOOT and not change.after


def begins_at_its_facts(plan: Plan) -> bool:
    """Return whether each binding change starts from the binding in the facts of its function."""
    known = {fact.subject: binding_in(fact) for fact in plan.facts_of(FUNCTION)}
    return all(known.get(other.subject) == Binding.parse(other.before) for other in plan.changes_of("binding"))


def _loads_what_it_binds(plan: Plan) -> bool:
    drivers = {Binding.parse(change.after).driver for change in plan.changes_of("binding")}
    return all(any(same_driver(module.name, driver) for driver in drivers) for module in plan.changes_of("module"))


def _verifies_its_groups(plan: Plan) -> bool:
    moved = {change.subject for change in plan.changes_of("binding")}
    groups = {str(fact.values["iommu_group"]) for fact in plan.facts_of(FUNCTION) if fact.subject in moved}
    return groups <= {group for check in plan.checks if check.kind == "viable" for group in check.subjects}
