"""What a change of some functions concerns: their cards, their groups, and strangers in those groups. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vfioctl.core.change import Binding, Fact
from vfioctl.inventory.model.functions import Function, Inventory
from vfioctl.inventory.model.values import PciAddress


@dataclass(frozen=True)
class Scope:
    """`own` are the functions asked for and the rest of their cards; `foreign` the endpoints that share a group."""

    asked: tuple[PciAddress, ...]
    own: tuple[PciAddress, ...]
    foreign: tuple[PciAddress, ...]
    bridges: tuple[PciAddress, ...]
    groups: tuple[int, ...]

    @property
    def everything(self) -> tuple[PciAddress, ...]:
        return in_order((*self.own, *self.foreign, *self.bridges))


def scope_of(inventory: Inventory, asked: Sequence[PciAddress]) -> Scope:
    """Card and group together: a card whose functions lie in several groups brings those groups in."""
    own = {member for address in asked for member in inventory.card_of(address)}
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


def binding_of(function: Function) -> Binding:
    return Binding(driver=function.driver, driver_override=function.driver_override)


def fact_of(function: Function) -> Fact:
    return Fact(
        address=function.address,
        identity=function.identity,
        iommu_group=function.iommu_group,
        binding=binding_of(function),
    )


def named(function: Function) -> str:
    """How messages name a function."""
    return f"{function.address} ({function.title}, {function.driver or 'no driver'})"
