"""Renders one function: all its facts, and what goes to a guest together with it. May not read the host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from vfioctl.console import words
from vfioctl.console.columns import Cell, Column, Layout, fact_grid
from vfioctl.inventory.model.functions import Function, Inventory
from vfioctl.inventory.model.machine import Group
from vfioctl.inventory.model.values import PciAddress
from vfioctl.inventory.render import phrases
from vfioctl.units import format_size

_Facts = Iterable[tuple[str, str | Text | None]]


def function_page(inventory: Inventory, address: PciAddress, *, width: int) -> RenderableType:
    """Render a function of the inventory for `width` columns."""
    function = inventory.by_address[address]
    sections = (
        ("Identity", _identity(function)),
        ("Driver", _driver(function)),
        ("Isolation", _isolation(inventory, function)),
        ("Place", _place(inventory, function)),
        ("Memory", _memory(function)),
        ("Link, power and reset", _link_and_power(function)),
        ("Virtual functions", _virtual(inventory, function)),
        ("vGPUs", _vgpus(function)),
        ("NVIDIA driver's own facts", _nvml(function)),
        ("Could not be read", function.unknown.items()),
    )
    drawn = [part for name, facts in sections for part in _section(name, facts)]
    marked = [Text(phrases.mark_line(function.mark), style="bold red")] if function.mark else []
    marked += [Text(phrases.reservation_line(r)) for r in inventory.reservations if r.subject == function.address]
    return Stack(_title(inventory, function), *marked, *drawn, *travel_lines(inventory, function, width))


def _title(inventory: Inventory, function: Function) -> Text:
    name = inventory.gpu_names.get(function.address, "")
    return Text("  ".join(filter(None, (function.address, name, phrases.name_of(function)))), style="bold")


def _section(name: str, facts: _Facts) -> Iterator[RenderableType]:
    grid = fact_grid(facts, least=18)
    if grid.row_count:
        yield Text()
        yield Text(name, style="bold")
        yield Padding.indent(grid, 2)


def _identity(function: Function) -> _Facts:
    yield "class", f"{function.class_code} {function.class_name or ''}"
    yield "vendor", f"{function.vendor_id} {function.vendor_name or ''}"
    yield "device", f"{function.device_id} {function.device_name or ''}"
    subsystem = f"{function.subsystem_vendor_id}:{function.subsystem_device_id}"
    yield "subsystem", f"{subsystem} {function.subsystem_name or ''}"


def _driver(function: Function) -> _Facts:
    yield "bound to", phrases.function_driver(function)
    yield "driver_override", function.driver_override or words.NONE
    yield "could use", ", ".join(function.available_drivers) or words.NONE


def _isolation(inventory: Inventory, function: Function) -> _Facts:
    group = inventory.group_of(function)
    yield "IOMMU group", _group_words(group) if group else phrases.group_name(function.iommu_group)
    yield "VFIO group node", function.vfio_group or words.NONE
    yield "VFIO device node", function.vfio_cdev
    yield "boot display", "yes: to bind it takes --allow-boot-vga" if function.boot_vga else None


def _group_words(group: Group) -> str:
    kind = f" ({group.type})" if group.type else ""
    if group.viable:
        return f"{group.id}{kind}, viable for a guest"
    if group.viable is None:
        return f"{group.id}{kind}, {phrases.viability_unknown(group)}"
    return f"{group.id}{kind}, not viable for a guest while the host has {phrases.blockers(group)}"


def _place(inventory: Inventory, function: Function) -> _Facts:
    yield "NUMA node", phrases.node_heading(function.numa_node, inventory).removeprefix("NUMA node ")
    bridge = inventory.by_address.get(function.upstream) if function.upstream else None
    yield "below", f"{function.upstream} {phrases.name_of(bridge) if bridge else ''}" if function.upstream else None
    yield "needs", words.listed(function.suppliers)
    yield "is needed by", words.listed(function.consumers)


def _memory(function: Function) -> _Facts:
    for bar in function.bars:
        name = "expansion ROM" if bar.index == 6 else f"BAR {bar.index}"
        yield name, f"{format_size(bar.size)} {bar.kind}" + (", prefetchable" if bar.prefetchable else "")
    if function.prefetchable_64:
        yield "64-bit in all", f"{format_size(function.prefetchable_64)}, prefetchable"


def _link_and_power(function: Function) -> _Facts:
    if function.link:
        yield "link now", phrases.link_pair(function.link.speed, function.link.width)
        yield "link at most", phrases.link_pair(function.link.max_speed, function.link.max_width)
    yield "power state", function.power_state
    yield "D3cold", None if function.d3cold_allowed is None else "allowed" if function.d3cold_allowed else "not allowed"
    yield "reset by", _reset_by(function)


def _reset_by(function: Function) -> str:
    if function.reset_unnamed:
        return "one, not named"
    return ", ".join(function.reset_methods) or (words.UNKNOWN if function.mark else words.NONE)


def _virtual(inventory: Inventory, function: Function) -> _Facts:
    yield "virtual function of", function.physfn
    if function.sriov_totalvfs is not None:
        yield "virtual functions", f"{len(function.virtfns)} of {function.sriov_totalvfs}"
    for address in function.virtfns:
        known = inventory.by_address.get(address)
        yield "", f"{address}{phrases.vgpus_on([known]) if known else ''}"


def _vgpus(function: Function) -> _Facts:
    yield "vGPU type", function.vgpu_type
    yield from (("mediated device", mdev) for mdev in function.mdevs)


def _nvml(function: Function) -> _Facts:
    known = function.nvml
    if known is None:
        return
    yield "name", known.name
    yield "UUID", known.uuid
    yield "memory", format_size(known.memory_bytes) if known.memory_bytes is not None else None
    yield "compute mode", known.compute_mode
    yield "persistence mode", _switched(known.persistence_mode) or words.UNKNOWN
    yield "MIG mode", _switched(known.mig_mode)


def _switched(state: bool | None) -> str | None:  # noqa: FBT001 - the value itself
    return None if state is None else "on" if state else "off"


def travel_lines(inventory: Inventory, function: Function, width: int) -> Iterator[RenderableType]:
    """Yield the lines of the section; none for a bridge, which stays with the host."""
    if function.is_bridge:
        return
    rows = [_row(inventory, address, _why(inventory, function, address)) for address in function.companions]
    bridges = [a for a in inventory.members_of(function.iommu_group) if inventory.by_address[a].is_bridge]
    rows += [_row(inventory, address, "bridge: stays") for address in bridges]
    unread = inventory.unread_beside(function)
    rows += [(address, "unknown", "unknown", phrases.not_read(inventory, address)) for address in unread]
    yield Text()
    yield Text("Travels with it", style="bold")
    if not function.companions and not unread:
        yield Text("  nothing: it is alone on its card and in its group")
    layout = Layout((Column(""),) * 4, rows, width - 2)
    for line in layout.flowing(rows):
        yield Padding.indent(line, 2)


def _row(inventory: Inventory, address: PciAddress, why: str) -> tuple[Cell, ...]:
    member = inventory.by_address[address]
    return address, why, phrases.function_driver(member), phrases.name_of(member)


def _why(inventory: Inventory, function: Function, address: PciAddress) -> str:
    if address not in inventory.card_of(function.address):
        return f"group {phrases.group_name(function.iommu_group)}: --with-group"
    return "same card" if address.slot == function.address.slot else "linked to the card"
