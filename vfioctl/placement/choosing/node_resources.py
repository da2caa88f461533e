"""The NUMA nodes of devices, the nearest ones with CPUs, and the free CPUs and hugepages that a claim gets. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from vfioctl.console.words import counted
from vfioctl.core.frozen import value_class
from vfioctl.inventory.model.functions import Function
from vfioctl.inventory.model.numa_affinity import home_of
from vfioctl.placement.choosing.cpus import choose_isolated, fewest, free_cores, shares
from vfioctl.placement.model.capacity import Capacity, Core
from vfioctl.placement.model.claims import Hugepages
from vfioctl.placement.model.request import ClaimRequest
from vfioctl.units import format_size

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
        """Return the node whose CPUs are for devices of a node: it, or the nearest with CPUs; all for UNKNOWN_NODE."""
        if node == UNKNOWN_NODE:
            return self._with_cpus
        return sorted(self._with_cpus, key=lambda other: (other != node, self.between(node, other), other))[:1]


def by_home(nodes: Mapping[int, int], distances: Distances) -> Mapping[int, int]:
    """Return the nodes that CPUs and hugepages come from, with their number of devices: 0 if others may be meant."""
    counts: dict[int, int] = {}
    for node, number in nodes.items():
        for home in distances.homes(node):
            counts[home] = counts.get(home, 0) + (0 if node == UNKNOWN_NODE else number)
    return dict(sorted(counts.items()))


@value_class
class NearbyResources:
    """What a claim gets beside its devices."""

    cores: tuple[Core, ...] = ()
    hugepages: tuple[Hugepages, ...] = ()

    @property
    def cpus(self) -> tuple[int, ...]:
        return tuple(sorted(cpu for core in self.cores for cpu in core.cpus))


class NodeResources:
    """What is free on each NUMA node, for one request."""

    def __init__(self, request: ClaimRequest, capacity: Capacity) -> None:
        self._request, self.distances = request, Distances(capacity)
        self._cores, self._isolated = free_cores(capacity), capacity.topology.isolated
        self._left_alone = {} if capacity.realtime else capacity.isolated_by_node
        self._cpus = {node: free.cpus for node, free in self._cores.items()}
        self._pages: dict[int, dict[int, int]] = {}
        for pool in capacity.hugepages:
            claimed = capacity.taken.hugepages.get((pool.node, pool.size), 0)
            self._pages.setdefault(pool.size, {})[pool.node] = max(0, min(pool.free, pool.total - claimed))

    def fit(self, nodes: Iterable[int]) -> bool:
        """Return whether the nodes of devices have the CPUs and hugepages together."""
        return not self.missing(dict.fromkeys(nodes, 1))

    def missing(self, nodes: Mapping[int, int]) -> str:
        """Return what the nodes of devices do not have: `6 free CPUs`; empty if they have all."""
        return self._short(nodes)[0]

    def missing_and_needed(self, nodes: Mapping[int, int]) -> str:
        """Return the same with what is asked for: `6 free CPUs, and 8 are needed`."""
        return ", and ".join(filter(None, self._short(nodes)))

    def _short(self, nodes: Mapping[int, int]) -> tuple[str, str]:
        homes = list(by_home(nodes, self.distances))
        cpus = sum(self._cpus.get(home, 0) for home in homes)
        if cpus < self._request.cpus:
            alone = sum(self._left_alone.get(home, 0) for home in homes)
            beside = f" beside {alone} isolated for realtime" if alone else ""
            return f"{counted(cpus, 'free CPU')}{beside}", f"{self._request.cpus} are needed"
        if self._request.hugepages and self._size(homes) is None:
            most = max((size * sum(self._of(homes, size)) for size in self._pages), default=0)
            return f"{format_size(most)} in free hugepages", f"{format_size(self._request.hugepages)} are needed"
        return "", ""

    def missing_exactly(self) -> str:
        """Return which of the exact hugepages that are asked for are not free; empty if all are."""
        for node, size, pages in self._request.exact_hugepages:
            free = self._pages.get(size, {}).get(node, 0)
            if free < pages:
                return f"node {node} has {free} free hugepages of {format_size(size)}, and {pages} are needed"
        return ""

    def _of(self, homes: Iterable[int], size: int) -> list[int]:
        return [self._pages[size].get(home, 0) for home in homes]

    def _size(self, homes: Sequence[int]) -> int | None:
        """Return the size of hugepages that serves the request: one that wastes least, then the largest."""
        wanted = self._request.hugepages
        fitting = [size for size in self._pages if sum(self._of(homes, size)) >= -(-wanted // size)]
        return min(fitting, key=lambda size: (-wanted % size, -size), default=None)

    def nearby(self, nodes: Mapping[int, int]) -> NearbyResources:
        """Return the CPUs and hugepages for devices. `nodes`: the number of devices of each node; they `fit`."""
        homes = by_home(nodes, self.distances)
        return NearbyResources(self._chosen_cores(homes), self._chosen_pages(homes))

    def _chosen_cores(self, homes: Mapping[int, int]) -> tuple[Core, ...]:
        wanted = self._request.cpus
        if not wanted:
            return ()
        rooms = {home: self._cpus.get(home, 0) for home in homes}
        weights = _weights(homes, rooms, wanted)
        widths = [len(core.cpus) for home in weights for cores in self._cores[home].caches for core in cores]
        counts = shares(wanted, [rooms[home] for home in weights], [*weights.values()], unit=max(widths, default=1))
        return tuple(
            core
            for home, share in zip(weights, counts, strict=True)
            if share
            for core in choose_isolated(self._cores[home], share, self._isolated)
        )

    def _chosen_pages(self, homes: Mapping[int, int]) -> tuple[Hugepages, ...]:
        wanted, size = self._request.hugepages, self._size(list(homes))
        if not wanted or size is None:
            return ()
        rooms, pages = dict(zip(homes, self._of(homes, size), strict=True)), -(-wanted // size)
        weights = _weights(homes, rooms, pages)
        counts = shares(pages, [rooms[home] for home in weights], [*weights.values()])
        return tuple(Hugepages(home, size, share) for home, share in zip(weights, counts, strict=True) if share)


def _weights(homes: Mapping[int, int], rooms: Mapping[int, int], wanted: int) -> Mapping[int, int]:
    """Return the nodes with their weights. Where the devices' node is not known, the fewest nodes that have enough."""
    if any(homes.values()):
        return homes
    order = sorted(homes, key=lambda home: (-rooms[home], home))
    return dict.fromkeys(sorted(order[: fewest(rooms.values(), wanted)]), 1)
