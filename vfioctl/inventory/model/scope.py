"""The scope of a change: the cards and groups of functions, and other devices in those groups. May not do I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from vfioctl.core.frozen import value_class
from vfioctl.inventory.model.functions import Function, Inventory
from vfioctl.inventory.model.values import PciAddress

if TYPE_CHECKING:
    from vfioctl.core.change import Fact

FUNCTION = "function"
"""The kind of a function's facts: identity, iommu_group, driver, driver_override."""


@value_class
class Scope:
    """`own`: the functions asked for and the rest of their cards. `foreign`: other endpoints in their groups."""

    asked: tuple[PciAddress, ...]
    own: tuple[PciAddress, ...]
    foreign: tuple[PciAddress, ...]
    bridges: tuple[PciAddress, ...]
    groups: tuple[int, ...]

    @property
    def everything(self) -> tuple[PciAddress, ...]:
        return in_order((*self.own, *self.foreign, *self.bridges))


def scope_of(inventory: Inventory, asked: Sequence[PciAddress], *, cards: bool = True) -> Scope:
    """Return the scope of a change. All groups of a card's functions are included; without `cards` only those asked."""
    own = {member for address in asked for member in (inventory.card_of(address) if cards else (address,))}
    groups = {group for a in own if (group := inventory.by_address[a].iommu_group) is not None}
    others = {member for group in groups for member in inventory.members_of(group)} - own
    bridges = {address for address in others if inventory.by_address[address].is_bridge}
    return Scope(
        asked=in_order(asked),
        own=in_order(own),
        foreign=in_order(others - bridges),
        bridges=in_order(bridges),
        groups=tuple(sorted(groups)),
    )


def in_order(addresses: Iterable[PciAddress]) -> tuple[PciAddress, ...]:
    return tuple(sorted(set(addresses), key=lambda address: address.order))


def function_fact(function: Function) -> Fact:
    """Return the fact that plans rely on for one function."""
    from vfioctl.core.change import Fact  # imported late: pydantic loads slowly, and who only chooses needs no facts

    return Fact(
        kind=FUNCTION,
        subject=function.address,
        values={
            "identity": function.identity,
            "iommu_group": function.iommu_group,
            "driver": function.driver,
            "driver_override": function.driver_override,
        },
    )


def named(function: Function) -> str:
    """Return a function's address, title and driver, for messages."""
    return f"{function.address} ({function.title}, {function.driver or 'no driver'})"
