"""Renders the inventory as a tree: NUMA node, IOMMU group, members. May not read the host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.text import Text
from rich.tree import Tree

from vfioctl.console import words
from vfioctl.console.columns import note_lines
from vfioctl.inventory.model.functions import Function, Inventory
from vfioctl.inventory.model.machine import Group
from vfioctl.inventory.model.values import PciAddress
from vfioctl.inventory.render import phrases
from vfioctl.inventory.render.phrases import gpu_notes, warning_notes
from vfioctl.units import format_cpu_list


def inventory_tree(inventory: Inventory, *, everything: bool) -> RenderableType:
    """Render the groups that have a GPU or a companion, with all members; or every group."""
    wanted = dict.fromkeys(f.address for f in inventory.functions) if everything else _gpus_and_companions(inventory)
    trees = []
    for number, blocks in _by_node(inventory, wanted).items():
        tree = Tree(_line(phrases.node_heading(number, inventory)))
        for group, members in blocks:
            branch = tree.add(_group_line(group))
            for line in _member_lines(inventory, members, unfold=everything):
                branch.add(line)
            for address in group.unread if group else ():
                branch.add(_line(f"{address} {phrases.not_read(inventory, address)}"))
        trees.append(tree)
    if inventory.unread:
        trees.append(tree := Tree(_line(phrases.UNREAD)))
        for address in inventory.unread:
            tree.add(_line(f"{address} {phrases.not_read(inventory, address)}"))
    notes = (*phrases.reservation_notes(inventory.reservations), *gpu_notes(inventory), *warning_notes(inventory))
    return Stack(Text(phrases.iommu_line(inventory)), *trees, *note_lines(notes))


_Block = tuple[Group | None, tuple[PciAddress, ...]]


def _by_node(inventory: Inventory, wanted: Iterable[PciAddress]) -> dict[int | None, list[_Block]]:
    """Return each group under the node of its first wanted member, and functions without a group one by one."""
    nodes: dict[int | None, list[_Block]] = {}
    seen: set[int] = set()
    for function in map(inventory.by_address.__getitem__, wanted):
        if function.iommu_group in seen:
            continue
        group = inventory.group_of(function)
        if group is not None:
            seen.add(group.id)
        members = group.members if group is not None else (function.address,)
        nodes.setdefault(function.numa_node, []).append((group, members))
    return dict(sorted(nodes.items(), key=lambda item: (item[0] is None, item[0])))


def _gpus_and_companions(inventory: Inventory) -> Iterable[PciAddress]:
    """Return the GPUs, in the order of their names, with their companions; VFs are shown with their PF."""
    shown = (gpu for gpu in inventory.ordered_gpus if gpu.physfn not in inventory.by_address)
    return dict.fromkeys(address for gpu in shown for address in (gpu.address, *gpu.companions))


def _group_line(group: Group | None) -> Text:
    if group is None:
        return _line("no IOMMU group")
    kind = f" ({words.plain(group.type)})" if group.type else ""
    if group.viable:
        return _line(f"group {group.id}{kind}: viable for a guest")
    if group.viable is None:
        return _line(f"group {group.id}{kind}: {phrases.viability_unknown(group)}")
    return _line(f"group {group.id}{kind}: not viable, {len(group.blockers)} of {len(group.members)} on host drivers")


def _member_lines(inventory: Inventory, members: tuple[PciAddress, ...], *, unfold: bool) -> Iterator[Text]:
    names = inventory.gpu_names
    for address in members:
        function = inventory.by_address[address]
        yield _member_line(function, names.get(address, ""))
        if function.virtfns and not unfold:
            yield _virtual_line(inventory, function)


def _member_line(function: Function, name: str) -> Text:
    line = _line(f"{function.address} ")
    line.append(f"{name} " if name else "", style="bold")
    line.append("[").append_text(phrases.function_driver(function)).append("] ")
    line.append(f"{function.mark.kind} " if function.mark else "", style="bold red")
    line.append("bridge, stays: " if function.is_bridge else "")
    return line.append(phrases.name_of(function) + phrases.vgpus_on([function]))


def _virtual_line(inventory: Inventory, function: Function) -> Text:
    known = [inventory.by_address[address] for address in function.virtfns if address in inventory.by_address]
    groups = format_cpu_list(vf.iommu_group for vf in known if vf.iommu_group is not None)
    vgpus = phrases.vgpus_on(known)
    return _line(f"{words.counted(len(function.virtfns), 'VF')}" + (f" in groups {groups}" if groups else "") + vgpus)


def _line(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="ellipsis")
