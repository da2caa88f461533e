"""Renders the inventory as a table: GPUs with companions by NUMA node, or every function. May not read the host."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.text import Text

from vfioctl.console import words
from vfioctl.console.columns import Cell, Layout, note_lines, table
from vfioctl.inventory.model.functions import Function, Inventory
from vfioctl.inventory.model.values import PciAddress
from vfioctl.inventory.render import phrases
from vfioctl.inventory.render.fields import FIELDS, cells
from vfioctl.inventory.render.phrases import gpu_notes, mark_notes, warning_notes
from vfioctl.units import format_cpu_list

_GPU_FIELDS = (
    *("group", "address", "gpu", "driver", "guest"),
    *("link", "bars", "ids", "override", "could-use", "name"),
)
_GPU_COLUMNS = [FIELDS[name].column for name in _GPU_FIELDS]
_ALL_FIELDS = ("address", "group", "numa", "driver", "ids", "class", "link", "bars", "override", "name")
_Row = tuple[Cell, ...]


def inventory_table(inventory: Inventory, *, width: int, everything: bool) -> RenderableType:
    """Render the GPUs, or every function, for `width` columns."""
    body = _all_lines(inventory, width) if everything else _gpu_lines(inventory, width)
    notes = (*(mark_notes if everything else gpu_notes)(inventory), *warning_notes(inventory))
    return Stack(*_heading(inventory), *body, *note_lines(notes))


def _heading(inventory: Inventory) -> Iterator[Text]:
    virtual = [gpu for gpu in inventory.gpus if gpu.is_vf]
    physical = [gpu for gpu in inventory.gpus if not gpu.is_vf]
    tallies = [_tally(inventory, gpus, noun) for gpus, noun in ((physical, "GPU"), (virtual, "VF")) if gpus]
    if vgpus := phrases.vgpus_on(inventory.functions, before=""):
        tallies.append(vgpus)
    yield Text("; ".join(tallies) or f"no GPU among {words.counted(len(inventory.functions), 'function')}")
    yield Text(phrases.iommu_line(inventory))


def _tally(inventory: Inventory, gpus: list[Function], noun: str) -> str:
    ready = sum(inventory.is_ready(gpu) for gpu in gpus)
    return f"{words.counted(len(gpus), noun)}, {ready or 'none'} ready for a guest"


def _all_lines(inventory: Inventory, width: int) -> Iterator[RenderableType]:
    yield Text()
    columns = [FIELDS[name].column for name in _ALL_FIELDS]
    yield from table(columns, [_function_row(inventory, function) for function in inventory.functions], width)


def _function_row(inventory: Inventory, function: Function) -> _Row:
    row = dict(zip(_ALL_FIELDS, cells(inventory, function, _ALL_FIELDS), strict=True))
    row["driver"] = phrases.driver_or_mark(function)  # there is no column for the mark
    row["name"] = phrases.name_of(function) + phrases.vgpus_on([function])
    return tuple(row.values())


def _gpu_lines(inventory: Inventory, width: int) -> Iterator[RenderableType]:
    sections = _sections(inventory)
    layout = Layout(_GPU_COLUMNS, [row for rows in sections.values() for row in rows], width)
    nodes = {node.id: node for node in inventory.numa_nodes}
    for number in sorted(sections, key=lambda n: (n is None, n)):
        yield Text()
        yield Text(phrases.node_heading(number, nodes.get(-1 if number is None else number)))
        yield from layout.header()
        yield from layout.lines(sections[number])


def _sections(inventory: Inventory) -> dict[int | None, list[_Row]]:
    """Return the rows by NUMA node. A companion is listed below its first GPU."""
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
    return sections


def _virtual_row(inventory: Inventory, function: Function) -> Iterator[_Row]:
    """Yield one row that summarises all VFs of a PF."""
    virtual = [inventory.by_address[address] for address in function.virtfns if address in inventory.by_address]
    if not virtual:
        return
    drivers = {vf.driver for vf in virtual}
    ready = sum(inventory.is_ready(vf) for vf in virtual)
    yield (
        format_cpu_list(vf.iommu_group for vf in virtual if vf.iommu_group is not None),
        f"+ {words.counted(len(virtual), 'VF')}",
        "",
        phrases.function_driver(virtual[0]) if len(drivers) == 1 else f"{len(drivers)} drivers",
        "ready" if ready == len(virtual) else f"{ready} ready" if ready else "no",
        "",
        "",
        f"{virtual[0].vendor_id}:{virtual[0].device_id}",
        "",
        "",
        f"virtual functions of {function.address}",
    )


def _vgpu_row(inventory: Inventory, function: Function) -> Iterator[_Row]:
    """Yield one row that counts the vGPUs on a function and on its VFs."""
    virtual = [inventory.by_address[address] for address in function.virtfns if address in inventory.by_address]
    if vgpus := phrases.vgpus_on([function, *virtual], before="+ "):
        blank = [""] * (len(_GPU_COLUMNS) - 3)
        yield ("", vgpus, *blank, f"vGPUs of {function.address}")
