"""Renders a placement: what was chosen, why, and why not each other GPU. May not read the host."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.text import Text

from vfioctl.claims.model.placement import Placement
from vfioctl.console.columns import Column, fact_grid, note_lines, table
from vfioctl.console.words import counted, listed, size
from vfioctl.inventory.model.functions import Function, Inventory
from vfioctl.inventory.model.values import PciAddress, Subject, format_cpu_list

_CHOSEN = (Column("DEVICE"), Column("GPU"), Column("NUMA", right=True), Column("GROUP", right=True), Column("NAME"))
_OTHERS = (Column("NOT CHOSEN"), Column("GPU"), Column("NAME", optional=True), Column("WHY NOT"))


def placement_page(placement: Placement, inventory: Inventory, *, width: int) -> RenderableType:
    """Render a placement for `width` columns."""
    return Stack(
        *table(_CHOSEN, [_row(device, inventory) for device in placement.devices], width),
        *_beside(placement),
        *note_lines(placement.why),
        *_others(placement, inventory, width),
    )


def _row(device: Subject, inventory: Inventory) -> tuple[str, ...]:
    function = _function(device, inventory)
    node = "" if function.numa_node is None else str(function.numa_node)
    group = "" if function.iommu_group is None or device != function.address else str(function.iommu_group)
    return device, inventory.gpu_names.get(function.address, ""), node, group, function.title


def _function(device: Subject, inventory: Inventory) -> Function:
    if isinstance(device, PciAddress):
        return inventory.by_address[device]
    return next(function for function in inventory.functions if device in function.mdevs)


def _beside(placement: Placement) -> Iterator[RenderableType]:
    pages = (f"{counted(each.pages, 'page')} of {size(each.size)} on node {each.node}" for each in placement.hugepages)
    facts = {"CPUs": format_cpu_list(placement.cpus), "hugepages": listed(pages)}
    if any(facts.values()):
        yield Text()
        yield fact_grid(facts.items(), style="bold")


def _others(placement: Placement, inventory: Inventory, width: int) -> Iterator[RenderableType]:
    if placement.others:
        rows = [
            (each.device, inventory.gpu_names.get(PciAddress(each.device), ""), each.title, each.reason)
            for each in placement.others
        ]
        yield Text()
        yield from table(_OTHERS, rows, width)
