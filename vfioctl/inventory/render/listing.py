"""Renders the inventory as a table: GPUs with companions by NUMA node, or every function. May not read the host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.text import Text

from vfioctl.console import words
from vfioctl.console.columns import Cell, Layout, note_lines
from vfioctl.inventory.model.document import tally_of
from vfioctl.inventory.model.functions import Function, Inventory
from vfioctl.inventory.model.values import PciAddress
from vfioctl.inventory.render import phrases
from vfioctl.inventory.render.fields import FIELDS, cells, unread_cells
from vfioctl.inventory.render.phrases import gpu_notes, mark_notes, warning_notes
from vfioctl.units import format_cpu_list

_GPU_FIELDS = (
    *("group", "address", "gpu", "driver", "guest", "claim", "owner"),
    *("link", "bars", "ids", "override", "could-use", "name"),
)
_ALL_FIELDS = (
    *("address", "group", "numa", "driver", "claim", "owner"),
    *("ids", "class", "link", "bars", "override", "name"),
)
_Row = tuple[Cell, ...]


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
    """Return the claims that the lines name, each with its owner."""
    claim, owner = fields.index("claim"), fields.index("owner")
    is_shown = layout.shows(claim) and layout.shows(owner)
    return frozenset(str(row[claim]) for row in rows if is_shown)


def _closing(inventory: Inventory) -> Iterator[Text]:
    """Yield the count of GPUs by state, if claims are known."""
    if not inventory.reservations:
        return
    counts = []
    for gpus, noun in _by_kind(inventory):
        tally = tally_of(inventory, gpus)
        counts.append(f"{noun}s: {tally.ready} ready, {tally.claimed} claimed, {tally.free} free")
    yield Text()
    yield Text("; ".join(counts))


def _heading(inventory: Inventory) -> Iterator[Text]:
    tallies = [_tally(inventory, gpus, noun) for gpus, noun in _by_kind(inventory)]
    if vgpus := phrases.vgpus_on(inventory.functions, before=""):
        tallies.append(vgpus)
    if inventory.unread:
        tallies.append(f"{words.counted(len(inventory.unread), 'function')} not read")
    yield Text("; ".join(tallies) or f"no GPU among {words.counted(len(inventory.functions), 'function')}")
    yield Text(phrases.iommu_line(inventory))


def _by_kind(inventory: Inventory) -> Iterator[tuple[list[Function], str]]:
    """Yield the GPUs and their VFs, each with its name; not what the host lacks."""
    for is_vf, noun in ((False, "GPU"), (True, "VF")):
        if gpus := [gpu for gpu in inventory.gpus if gpu.is_vf == is_vf]:
            yield gpus, noun


def _tally(inventory: Inventory, gpus: list[Function], noun: str) -> str:
    ready = sum(inventory.is_ready(gpu) for gpu in gpus)
    return f"{words.counted(len(gpus), noun)}, {ready or 'none'} ready for a guest"


def _all_rows(inventory: Inventory) -> list[_Row]:
    rows = {function.address: _function_row(inventory, function) for function in inventory.functions}
    rows |= {address: unread_cells(inventory, address, _ALL_FIELDS) for address in inventory.unread}
    return [rows[address] for address in sorted(rows, key=lambda a: a.order)]


def _function_row(inventory: Inventory, function: Function) -> _Row:
    row = dict(zip(_ALL_FIELDS, cells(inventory, function, _ALL_FIELDS), strict=True))
    row["driver"] = phrases.driver_or_mark(function)  # there is no column for the mark
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
                rows.extend(_virtual_row(inventory, member))
                rows.extend(_vgpu_row(inventory, member))
                seen.add(address)
    nodes = {node.id: node for node in inventory.numa_nodes}
    by_heading = {
        phrases.node_heading(number, nodes.get(-1 if number is None else number)): sections[number]
        for number in sorted(sections, key=lambda n: (n is None, n))
    }
    unread = [unread_cells(inventory, address, _GPU_FIELDS) for address in inventory.unread]
    return {**by_heading, phrases.UNREAD: unread} if unread else by_heading


def _virtual_row(inventory: Inventory, function: Function) -> Iterator[_Row]:
    """Yield one row that summarises all VFs of a PF."""
    virtual = [inventory.by_address[address] for address in function.virtfns if address in inventory.by_address]
    if not virtual:
        return
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


def _vgpu_row(inventory: Inventory, function: Function) -> Iterator[_Row]:
    """Yield one row that counts the vGPUs on a function and on its VFs."""
    virtual = [inventory.by_address[address] for address in function.virtfns if address in inventory.by_address]
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
    """Return the only name; `3 claims` for several."""
    different = set(names)
    return words.counted(len(different), noun) if len(different) > 1 else "".join(different)
