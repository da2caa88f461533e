"""Renders a placement: what was chosen, why, and why not each other GPU. May not read the host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.text import Text

from vfioctl.console.columns import Column, fact_grid, note_lines, table
from vfioctl.console.words import counted, listed
from vfioctl.inventory.model.functions import Function, Inventory
from vfioctl.inventory.model.values import PciAddress, Subject
from vfioctl.placement.model.placement import NewVgpus, Placement
from vfioctl.placement.model.share import GpuShare
from vfioctl.units import format_cpu_list, format_size

_CHOSEN = (Column("DEVICE"), Column("GPU"), Column("NUMA", right=True), Column("GROUP", right=True), Column("NAME"))
_VGPUS = (
    Column("VGPUS ON"),
    Column("GPU"),
    Column("NUMA", right=True),
    Column("NUMBER", right=True),
    Column("TYPE"),
    Column("NAME"),
)
_SHARES = (
    Column("ON"),
    Column("GPU"),
    Column("NUMA", right=True),
    Column("CORES", right=True),
    Column("MEMORY", right=True),
    Column("NAME"),
)
_OTHERS = (Column("NOT CHOSEN"), Column("GPU"), Column("NAME", optional=True), Column("WHY NOT"))


def placement_page(placement: Placement, inventory: Inventory, *, width: int) -> RenderableType:
    """Render a placement for `width` columns."""
    return Stack(
        *_chosen(placement, inventory, width),
        *_nearby(placement),
        *note_lines(placement.why),
        *_others(placement, inventory, width),
    )


def _chosen(placement: Placement, inventory: Inventory, width: int) -> Iterator[RenderableType]:
    if placement.vgpus:
        return table(_VGPUS, [_vgpus(vgpu, inventory) for vgpu in placement.vgpus], width)
    if placement.shares:
        return table(_SHARES, [_share(share, inventory) for share in placement.shares], width)
    return table(_CHOSEN, [_row(device, inventory) for device in placement.devices], width)


def _vgpus(vgpus: NewVgpus, inventory: Inventory) -> tuple[str, ...]:
    function = next((function for function in inventory.functions if function.address == vgpus.parent), None)
    if function is None:
        return vgpus.parent, "", "", str(vgpus.count), vgpus.type, ""
    gpu = inventory.gpu_names.get(function.physfn or function.address, "")
    return vgpus.parent, gpu, _node(function), str(vgpus.count), vgpus.type, function.title


def _share(share: GpuShare, inventory: Inventory) -> tuple[str, ...]:
    function = inventory.by_address.get(PciAddress(share.address))
    memory = "all" if share.is_whole else format_size(share.memory) if share.memory else ""
    cores = f"{share.cores}" if share.cores else ""
    if function is None:
        return share.address, "", "", cores, memory, ""
    gpu = inventory.gpu_names.get(function.address, "")
    return share.address, gpu, _node(function), cores, memory, function.title


def _node(function: Function) -> str:
    return "" if function.numa_node is None else str(function.numa_node)


def _row(device: Subject, inventory: Inventory) -> tuple[str, ...]:
    function = _function(device, inventory)
    if function is None:
        return device, "", "", "", ""
    group = "" if function.iommu_group is None or device != function.address else str(function.iommu_group)
    return device, inventory.gpu_names.get(function.address, ""), _node(function), group, function.title


def _function(device: Subject, inventory: Inventory) -> Function | None:
    """Return the function, or that of a mediated device; None if that is on a device that is no PCI function."""
    if isinstance(device, PciAddress):
        return inventory.by_address.get(device)
    return next((function for function in inventory.functions if device in function.mdevs), None)


def _nearby(placement: Placement) -> Iterator[RenderableType]:
    pages = (
        f"{counted(hugepages.pages, 'page')} of {format_size(hugepages.size)} on node {hugepages.node}"
        for hugepages in placement.hugepages
    )
    facts = {"CPUs": format_cpu_list(placement.cpus), "hugepages": listed(pages)}
    if any(facts.values()):
        yield Text()
        yield fact_grid(facts.items(), style="bold")


def _others(placement: Placement, inventory: Inventory, width: int) -> Iterator[RenderableType]:
    if placement.others:
        names: Mapping[str, str] = {str(address): name for address, name in inventory.gpu_names.items()}
        rows = [(other.device, names.get(other.device, ""), other.title, other.reason) for other in placement.others]
        yield Text()
        yield from table(_OTHERS, rows, width)
