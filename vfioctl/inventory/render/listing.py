"""Renders the inventory as tables: lists of devices, GPUs with companions by NUMA node. May not read the host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.text import Text

from vfioctl.console import words
from vfioctl.console.columns import Cell, Column, Layout, note_lines
from vfioctl.console.words import UNKNOWN
from vfioctl.errors import BadSpec
from vfioctl.inventory.model.document import tally_of
from vfioctl.inventory.model.functions import Function, Inventory
from vfioctl.inventory.model.values import PciAddress
from vfioctl.inventory.render import phrases
from vfioctl.inventory.render.phrases import gpu_notes, mark_notes, warning_notes
from vfioctl.inventory.selection.selector import node_name
from vfioctl.units import format_cpu_list, format_size

_GPU_FIELDS = (
    *("group", "address", "gpu", "driver", "guest", "claim", "owner"),
    *("link", "bars", "ids", "override", "could-use", "name"),
)
_ALL_FIELDS = (
    *("address", "group", "numa", "driver", "claim", "owner"),
    *("ids", "class", "link", "bars", "override", "name"),
)
_Row = tuple[Cell, ...]


class Field(NamedTuple):
    """A column and how its cells are made."""

    column: Column
    cell: Callable[[Inventory, Function], Cell]


FIELDS: Mapping[str, Field] = {
    "address": Field(Column("ADDRESS"), lambda _, f: f.address),
    "gpu": Field(Column("GPU"), lambda inventory, f: inventory.gpu_names.get(f.address, "")),
    "group": Field(Column("GROUP", right=True), lambda _, f: phrases.group_name(f.iommu_group)),
    "numa": Field(Column("NUMA", right=True), lambda _, f: node_name(f)),
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


def inventory_table(inventory: Inventory, *, width: int, everything: bool) -> RenderableType:
    """Render the GPUs, or every function, for `width` columns."""
    fields = _ALL_FIELDS if everything else _GPU_FIELDS
    sections = {"": _all_rows(inventory)} if everything else _sections(inventory)
    rows = [row for section in sections.values() for row in section]
    layout = Layout([FIELDS[name].column for name in fields], rows, width)
    notes = (
        *phrases.reservation_notes(inventory.reservations, shown=_claims_shown(layout, fields, rows)),
        *(mark_notes if everything else gpu_notes)(inventory),
        *warning_notes(inventory),
    )
    return Stack(*_heading(inventory), *_lines(sections, layout), *note_lines(notes), *_closing(inventory))


def _lines(sections: Mapping[str, list[_Row]], layout: Layout) -> Iterator[RenderableType]:
    for heading, rows in sections.items():
        yield Text()
        yield from [Text(heading)] if heading else []
        yield from layout.header()
        yield from layout.lines(rows)


def _claims_shown(layout: Layout, fields: Sequence[str], rows: Iterable[_Row]) -> frozenset[str]:
    claim, owner = fields.index("claim"), fields.index("owner")
    is_shown = layout.shows(claim) and layout.shows(owner)
    return frozenset(str(row[claim]) for row in rows if is_shown)


def _closing(inventory: Inventory) -> Iterator[Text]:
    if not inventory.reservations:
        return
    counts = []
    for gpus, noun in _by_kind(inventory):
        tally = tally_of(inventory, gpus)
        counts.append(f"{noun}s: {tally.ready} ready, {tally.claimed} claimed, {tally.free} free")
    yield Text()
    yield Text("; ".join(counts))


def _heading(inventory: Inventory) -> Iterator[Text]:
    tallies = [phrases.gpu_count(inventory, gpus, noun) for gpus, noun in _by_kind(inventory)]
    if vgpus := phrases.vgpus_on(inventory.functions, before=""):
        tallies.append(vgpus)
    if inventory.unread:
        tallies.append(f"{words.counted(len(inventory.unread), 'function')} not read")
    yield Text("; ".join(tallies) or f"no GPU among {words.counted(len(inventory.functions), 'function')}")
    yield Text(phrases.iommu_line(inventory))


def _by_kind(inventory: Inventory) -> Iterator[tuple[list[Function], str]]:
    for is_vf, noun in ((False, "GPU"), (True, "VF")):
        if gpus := [gpu for gpu in inventory.gpus if gpu.is_vf == is_vf]:
            yield gpus, noun


def _all_rows(inventory: Inventory) -> list[_Row]:
    rows = {function.address: _function_row(inventory, function) for function in inventory.functions}
    rows |= {address: unread_cells(inventory, address, _ALL_FIELDS) for address in inventory.unread}
    return [rows[address] for address in sorted(rows, key=lambda a: a.order)]


def _function_row(inventory: Inventory, function: Function) -> _Row:
    row = dict(zip(_ALL_FIELDS, cells(inventory, function, _ALL_FIELDS), strict=True))
    if function.mark:  # there is no column for it
        row["driver"] = Text(function.mark.kind, style="bold red")
    row["name"] = phrases.name_of(function) + phrases.vgpus_on([function])
    return tuple(row.values())


def _sections(inventory: Inventory) -> dict[str, list[_Row]]:
    """Return the rows of GPUs by the heading of their NUMA node. A companion is listed below its first GPU."""
    sections: dict[int | None, list[_Row]] = {}
    seen: set[PciAddress] = set()
    for gpu in inventory.ordered_gpus:
        if gpu.address in seen or gpu.physfn in inventory.by_address:
            continue
        rows = sections.setdefault(gpu.numa_node, [])
        card = inventory.card_of(gpu.address)
        for address in (gpu.address, *sorted(gpu.companions, key=lambda other: other not in card)):
            member = inventory.by_address.get(address)
            if member is not None and address not in seen:
                rows.append(cells(inventory, member, _GPU_FIELDS))
                rows.extend(_part_rows(inventory, member))
                seen.add(address)
    order = sorted(sections, key=lambda number: (number is None, number))
    by_heading = {phrases.node_heading(number, inventory): sections[number] for number in order}
    unread = [unread_cells(inventory, address, _GPU_FIELDS) for address in inventory.unread]
    return {**by_heading, phrases.UNREAD: unread} if unread else by_heading


def _part_rows(inventory: Inventory, function: Function) -> Iterator[_Row]:
    """Yield a row that summarises all VFs of a PF, and one that counts the vGPUs on it and on them."""
    virtual = [inventory.by_address[address] for address in function.virtfns if address in inventory.by_address]
    if virtual:
        drivers = {vf.driver for vf in virtual}
        ready = sum(inventory.is_ready(vf) for vf in virtual)
        yield _row(
            inventory,
            group=format_cpu_list(vf.iommu_group for vf in virtual if vf.iommu_group is not None),
            address=f"+ {words.counted(len(virtual), 'VF')}",
            driver=phrases.function_driver(virtual[0]) if len(drivers) == 1 else f"{len(drivers)} drivers",
            guest="ready" if ready == len(virtual) else f"{ready} ready" if ready else "no",
            held=[vf.address for vf in virtual],
            ids=f"{virtual[0].vendor_id}:{virtual[0].device_id}",
            name=f"virtual functions of {function.address}",
        )
    if vgpus := phrases.vgpus_on([function, *virtual], before="+ "):
        held: list[str] = [vf.address for vf in virtual if vf.vgpu_type]
        held += [mdev for member in (function, *virtual) for mdev in member.mdevs]
        yield _row(inventory, address=vgpus, held=held, name=f"vGPUs of {function.address}")


def _row(inventory: Inventory, *, held: Iterable[str], **row: Cell) -> _Row:
    """Return a row of the table of GPUs by its fields; the others are empty. `held`: devices that may be claimed."""
    claims = [inventory.reserved[subject] for subject in held if subject in inventory.reserved]
    row["claim"] = _one_or_count([reservation.claim for reservation in claims], "claim")
    row["owner"] = _one_or_count([reservation.owner for reservation in claims], "owner")
    return tuple(row.get(name, "") for name in _GPU_FIELDS)


def _one_or_count(names: Sequence[str], noun: str) -> str:
    different = set(names)
    return words.counted(len(different), noun) if len(different) > 1 else "".join(different)
