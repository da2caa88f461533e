"""A function's binding: its driver and its `driver_override`. May not do input or output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from vfioctl.core.change import Fact
from vfioctl.inventory.model.functions import Function, is_vfio_driver
from vfioctl.inventory.model.values import PciAddress

KERNEL_CHOICE = "(kernel's choice)"
"""As a goal driver: whichever driver the kernel binds by itself, or none."""
_NO_DRIVER, _OR, _OVERRIDE = "no driver", " or ", ", override "


class Binding(NamedTuple):
    """A function's driver and override. As text: `nouveau`, `no driver`, `vfio-pci, override vfio-pci`."""

    driver: str | None
    driver_override: str | None = None
    spellings: tuple[str, ...] = ()
    """Other names that a driver not registered yet may register under."""

    @classmethod
    def parse(cls, text: str) -> Binding:
        """Return the binding of its text form."""
        name, _, override = text.partition(_OVERRIDE)
        driver, *others = name.split(_OR)
        return cls(None if driver == _NO_DRIVER else driver, override or None, tuple(others))

    @property
    def text(self) -> str:
        name = _OR.join((self.driver or _NO_DRIVER, *self.spellings))
        return f"{name}{_OVERRIDE}{self.driver_override}" if self.driver_override else name

    def meets(self, goal: Binding) -> bool:
        """Return whether this binding, as found, meets the goal."""
        if goal.driver == KERNEL_CHOICE:
            chosen = self.driver is None or not is_vfio_driver(self.driver)
        else:
            chosen = same_driver(self.driver, goal.driver)
        return chosen and same_driver(self.driver_override, goal.driver_override)

    def settled(self, goal: Binding) -> bool:
        """Return whether nothing needs to be done: a device without a driver still needs a probe for KERNEL_CHOICE."""
        return self.meets(goal) and not (goal.driver == KERNEL_CHOICE and self.driver is None)

    def moves(self, goal: Binding) -> bool:
        """Return whether reaching the goal changes the driver."""
        if goal.driver == KERNEL_CHOICE:
            return self.driver is None or is_vfio_driver(self.driver)
        return not same_driver(self.driver, goal.driver)

    @property
    def on_vfio(self) -> bool:
        return self.driver is not None and is_vfio_driver(self.driver)


Bindings = Mapping[PciAddress, Binding]


def same_driver(one: str | None, other: str | None) -> bool:
    """Return whether two names mean one driver: a `_` in a module's name may be a `-` in the driver's name."""
    return one == other or (one or "").replace("_", "-") == (other or "").replace("_", "-")


def binding_of(function: Function) -> Binding:
    return Binding(function.driver, function.driver_override)


def binding_in(fact: Fact) -> Binding:
    """Return the binding in a function's fact."""
    driver, override = fact.values["driver"], fact.values["driver_override"]
    return Binding(None if driver is None else str(driver), None if override is None else str(override))
