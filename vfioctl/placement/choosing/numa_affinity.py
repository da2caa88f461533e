"""The NUMA nodes of devices, and the nodes whose CPUs are nearest to them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from vfioctl.inventory.model.functions import Function
from vfioctl.inventory.model.numa_affinity import home_of
from vfioctl.placement.model.capacity import Capacity

UNKNOWN_NODE = -1
_FAR = 255
"""The distance of nodes for which the firmware reports none: more than any that it may report."""


def node_of(function: Function, capacity: Capacity) -> int | None:
    """Return a function's node, as far as the host reports it; that of its CPUs if there is one only."""
    node = home_of(function, capacity.inventory).node
    nodes = list(capacity.topology.by_node)
    return nodes[0] if node is None and not capacity.inventory.numa_nodes and len(nodes) == 1 else node


class Distances:
    """The distances between NUMA nodes, as the firmware reports it."""

    def __init__(self, capacity: Capacity) -> None:
        self._known = {node.id: node.distances for node in capacity.inventory.numa_nodes}
        self._with_cpus = tuple(capacity.topology.by_node)

    def between(self, one: int, other: int) -> int:
        return self._known.get(one, {}).get(other, _FAR)

    def among(self, nodes: Iterable[int]) -> int:
        """Return the sum over all pairs."""
        return sum(self.between(one, other) for one, other in combinations(nodes, 2))

    def homes(self, node: int) -> Sequence[int]:
        """Return the nodes whose CPUs are meant for devices of a node: itself, or the nearest one that has CPUs.

        All nodes for UNKNOWN_NODE.
        """
        if node == UNKNOWN_NODE:
            return self._with_cpus
        return sorted(self._with_cpus, key=lambda other: (other != node, self.between(node, other), other))[:1]


def by_home(nodes: Mapping[int, int], distances: Distances) -> Mapping[int, int]:
    """Return the nodes that CPUs and hugepages come from, with the number of devices of each.

    `nodes`: the number of devices of each node. A node has the number 0 if it is only one of many that may be meant.
    """
    counts: dict[int, int] = {}
    for node, number in nodes.items():
        for home in distances.homes(node):
            counts[home] = counts.get(home, 0) + (0 if node == UNKNOWN_NODE else number)
    return dict(sorted(counts.items()))
