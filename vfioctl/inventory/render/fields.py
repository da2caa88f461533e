"""The columns that a listing of functions can have, by name. May not read the host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from rich.console import Group as Stack
from rich.console import RenderableType

from vfioctl.console.columns import Cell, Column, Layout
from vfioctl.console.words import UNKNOWN
from vfioctl.errors import BadSpec
from vfioctl.inventory.model.functions import Function, Inventory
from vfioctl.inventory.model.values import PciAddress
from vfioctl.inventory.render import phrases
from vfioctl.units import format_size


class Field(NamedTuple):
    """A column and how its cells are made."""

    column: Column
    cell: Callable[[Inventory, Function], Cell]


FIELDS: Mapping[str, Field] = {
    "address": Field(Column("ADDRESS"), lambda _, f: f.address),
    "gpu": Field(Column("GPU"), lambda inventory, f: inventory.gpu_names.get(f.address, "")),
    "group": Field(Column("GROUP", right=True), lambda _, f: phrases.group_name(f.iommu_group)),
    "numa": Field(Column("NUMA", right=True), lambda _, f: phrases.node_name(f.numa_node)),
    "driver": Field(Column("DRIVER"), lambda _, f: phrases.function_driver(f)),
    "guest": Field(Column("GUEST"), lambda inventory, f: phrases.guest_state(f, inventory)),
    "claim": Field(Column("CLAIM", optional=True), lambda _, f: f.claim or ""),
    "owner": Field(Column("OWNER", optional=True), lambda _, f: f.owner or ""),
    "link": Field(Column("LINK", optional=True), lambda _, f: phrases.link_now(f.link)),
    "bars": Field(
        Column("64-BIT BARS", right=True, optional=True),
        lambda _, f: format_size(f.prefetchable_64) if f.prefetchable_64 else "",
    ),
    "ids": Field(Column("IDS", optional=True), lambda _, f: f"{f.vendor_id}:{f.device_id}"),
    "class": Field(Column("CLASS", optional=True), lambda _, f: f.class_name or f.class_code),
    "override": Field(Column("OVERRIDE", optional=True), lambda _, f: f.driver_override or ""),
    "could-use": Field(Column("COULD USE", optional=True), lambda _, f: " ".join(f.available_drivers)),
    "vgpus": Field(Column("VGPUS", right=True, optional=True), lambda _, f: str(f.vgpus) if f.vgpus else ""),
    "name": Field(Column("NAME"), lambda _, f: phrases.name_of(f)),
}


def fields_called(text: str | None) -> Sequence[str]:
    """Return the names in a list such as `address,driver`; all of them for None. Raises BadSpec."""
    names = list(FIELDS) if text is None else [name.strip() for name in text.split(",")]
    for name in names:
        if name not in FIELDS:
            raise BadSpec(f"there is no column {name[:40]!r}", hint=f"the columns are {', '.join(FIELDS)}")
    return names


def cells(inventory: Inventory, function: Function, names: Iterable[str]) -> tuple[Cell, ...]:
    return tuple(FIELDS[name].cell(inventory, function) for name in names)


def unread_cells(inventory: Inventory, address: PciAddress, names: Iterable[str]) -> tuple[Cell, ...]:
    """Return the cells of a function that could not be read, with the reason for its name."""
    group = next((str(group.id) for group in inventory.groups if address in group.unread), UNKNOWN)
    known = {"address": address, "group": group, "name": phrases.not_read(inventory, address)}
    return tuple(known.get(name, UNKNOWN if name in ("numa", "driver", "guest") else "") for name in names)


def rows_of(
    inventory: Inventory, shown: Iterable[Function], names: Sequence[str], unread: Iterable[PciAddress]
) -> list[tuple[Cell, ...]]:
    """Return the rows of functions, and then of those that could not be read."""
    rows = [cells(inventory, function, names) for function in shown]
    return rows + [unread_cells(inventory, address, names) for address in unread]


def texts(row: Iterable[Cell]) -> list[str]:
    """Return the cells without their styles."""
    return [cell if isinstance(cell, str) else cell.plain for cell in row]


def flat_table(
    rows: Sequence[tuple[Cell, ...]], names: Sequence[str], *, width: int, asked: bool, header: bool
) -> RenderableType:
    """Render rows, one a line. `asked`: the columns were asked for, so all are shown however narrow the width."""
    columns = [FIELDS[name].column for name in names]
    columns = [column._replace(optional=False) for column in columns] if asked else columns
    layout = Layout(columns, rows, width)
    return Stack(*(layout.header() if header else ()), *layout.lines(rows))
