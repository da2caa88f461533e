"""What would go to a guest together with a function, and why; and what stays."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from vfioctl.console import words
from vfioctl.console.columns import Cell, Column, Layout
from vfioctl.inventory.model.functions import Function, Inventory
from vfioctl.inventory.model.values import PciAddress

_INDENT = 2


def travel_lines(inventory: Inventory, function: Function, width: int) -> Iterator[RenderableType]:
    """The section of a page; empty for a bridge, which never travels."""
    if function.is_bridge:
        return
    rows = [_row(inventory, address, _why(inventory, function, address)) for address in function.companions]
    rows += [_row(inventory, address, "bridge: stays") for address in _bridges(inventory, function)]
    yield Text("\nTravels with it", style="bold")
    if not function.companions:
        yield Text("  nothing: it is alone on its card and in its group")
    layout = Layout((Column(""),) * 4, rows, width - _INDENT)
    for line in layout.lines(rows):
        yield Padding(line, (0, 0, 0, _INDENT))


def _row(inventory: Inventory, address: PciAddress, why: str) -> tuple[Cell, ...]:
    member = inventory.by_address[address]
    return address, why, words.function_driver(member), words.name_of(member)


def _why(inventory: Inventory, function: Function, address: PciAddress) -> str:
    if address not in inventory.card_of(function.address):
        return f"group {words.group_name(function.iommu_group)}: --with-group"
    return "same card" if address.slot == function.address.slot else "linked to the card"


def _bridges(inventory: Inventory, function: Function) -> list[PciAddress]:
    return [a for a in inventory.members_of(function.iommu_group) if inventory.by_address[a].is_bridge]
