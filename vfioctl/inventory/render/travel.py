"""Renders what goes to a guest together with a function, why, and what stays. May not read the host."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from vfioctl.console.columns import Cell, Column, Layout
from vfioctl.inventory.model.functions import Function, Inventory
from vfioctl.inventory.model.values import PciAddress
from vfioctl.inventory.render import phrases

_INDENT = 2


def travel_lines(inventory: Inventory, function: Function, width: int) -> Iterator[RenderableType]:
    """Yield the lines of the section; none for a bridge, which stays with the host."""
    if function.is_bridge:
        return
    rows = [_row(inventory, address, _why(inventory, function, address)) for address in function.companions]
    rows += [_row(inventory, address, "bridge: stays") for address in _bridges(inventory, function)]
    yield Text()
    yield Text("Travels with it", style="bold")
    if not function.companions:
        yield Text("  nothing: it is alone on its card and in its group")
    layout = Layout((Column(""),) * 4, rows, width - _INDENT)
    for line in layout.flowing(rows):
        yield Padding.indent(line, _INDENT)


def _row(inventory: Inventory, address: PciAddress, why: str) -> tuple[Cell, ...]:
    member = inventory.by_address[address]
    return address, why, phrases.function_driver(member), phrases.name_of(member)


def _why(inventory: Inventory, function: Function, address: PciAddress) -> str:
    if address not in inventory.card_of(function.address):
        return f"group {phrases.group_name(function.iommu_group)}: --with-group"
    return "same card" if address.slot == function.address.slot else "linked to the card"


def _bridges(inventory: Inventory, function: Function) -> list[PciAddress]:
    return [a for a in inventory.members_of(function.iommu_group) if inventory.by_address[a].is_bridge]
