"""The NUMA node of a function, and the root complex above it, as a host reports it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from vfioctl.inventory.model.functions import Function, Inventory
from vfioctl.inventory.model.values import PciAddress


class Home(NamedTuple):
    """A function's NUMA node, and the source of it; None if unknown."""

    node: int | None
    reported_by: str


def home_of(function: Function, inventory: Inventory) -> Home:
    """Return the node of a function: its own, that of its PF, of the nearest bridge above it, or the host's only one.
    Source: Documentation/ABI/testing/sysfs-bus-pci, numa_node: -1 means that the firmware does not report it.
    local_cpulist is of no use then: it has every online CPU (drivers/pci/pci-sysfs.c, pci_dev_show_local_cpu). Where
    there is no numa_node, as in captures, the inventory has taken the node from it."""
    if function.numa_node is not None:
        return Home(function.numa_node, "the firmware")
    physical = inventory.by_address.get(function.physfn) if function.physfn else None
    if physical and physical.numa_node is not None:
        return Home(physical.numa_node, f"its PF {physical.address}")
    for bridge in above(physical or function, inventory):
        if bridge.numa_node is not None:
            return Home(bridge.numa_node, f"the bridge {bridge.address} above it")
    nodes = [node.id for node in inventory.numa_nodes]
    return Home(nodes[0], "the host, which has one node") if len(nodes) == 1 else Home(None, "")


def above(function: Function, inventory: Inventory) -> Iterator[Function]:
    """Yield the bridges above a function, the nearest first."""
    seen = {function.address}
    here = inventory.by_address.get(function.upstream) if function.upstream else None
    while here and here.address not in seen:
        yield here
        seen.add(here.address)
        here = inventory.by_address.get(here.upstream) if here.upstream else None


def root_complex(function: Function, inventory: Inventory) -> str:
    """Return the root bus that a function is below, as `0000:40`. A VF is where its PF is."""
    physical = inventory.by_address.get(function.physfn) if function.physfn else None
    top = [physical or function, *above(physical or function, inventory)][-1]
    return top.address.rpartition(":")[0]


def on_nodes(inventory: Inventory, nodes: Mapping[PciAddress, int]) -> Inventory:
    """Return the inventory with these functions, and the others in their slots, on these NUMA nodes."""
    slots = {address.slot: node for address, node in nodes.items()}
    by_address = {f.address: nodes.get(f.address, slots.get(f.address.slot)) for f in inventory.functions}
    known = {address: node for address, node in by_address.items() if node is not None}
    functions = (replace(f, numa_node=known.get(f.address, f.numa_node)) for f in inventory.functions)
    return replace(inventory, functions=tuple(functions)) if known else inventory
