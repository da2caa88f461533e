"""Chooses the GPUs of a claim, on few NUMA nodes and close by PCIe, or a partition of the fabric manager. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, islice

from vfioctl.core.frozen import value_class
from vfioctl.inventory.model.functions import Function
from vfioctl.inventory.model.scope import in_order
from vfioctl.inventory.model.values import PciAddress, Subject
from vfioctl.placement.choosing.node_resources import UNKNOWN_NODE, NodeResources, node_of
from vfioctl.placement.choosing.tree import Best, Kind, Meeting, Nodes, cost_of, divided, meetings
from vfioctl.placement.model.capacity import Capacity
from vfioctl.placement.model.request import ClaimRequest

_MOST_SETS = 4096
"""The most sets of nodes of one size that are looked at. A host with 12 nodes has fewer, whatever is asked for."""
_BETWEEN_NODES = 2 * Kind.NODE
BRIDGES = "06"
"""The class of bridges; NVSwitches have it too (0680)."""


@dataclass(frozen=True, slots=True, order=True)
class Score:
    """How good a choice is. Less is better, and an earlier part takes precedence. See also `Cost`."""

    unknown: int
    """The number of GPUs whose NUMA node is not known."""
    nodes: int
    """The number of NUMA nodes that are known, also of the functions that the request names."""
    far: int
    """The sum of the distances of these nodes."""
    near: int
    distance: int
    unlinked: int
    lost: int
    """The number of other partitions that could be chosen now, and could not afterwards."""
    stranded: int


Trees = Mapping[int, Meeting]


@value_class
class Pool:
    """GPUs that can be chosen for a request."""

    request: ClaimRequest
    capacity: Capacity
    gpus: tuple[PciAddress, ...]

    @cached_property
    def node_resources(self) -> NodeResources:
        return NodeResources(self.request, self.capacity)

    @cached_property
    def partitions(self) -> tuple[tuple[PciAddress, ...], ...]:
        """The partitions of which all GPUs can be chosen."""
        here = set(self.gpus)
        return tuple(partition for partition in self.capacity.settings.partitions if here.issuperset(partition))

    @cached_property
    def fabric(self) -> frozenset[PciAddress]:
        """The GPUs that are given in partitions only."""
        return frozenset(gpu for partition in self.capacity.settings.partitions for gpu in partition)

    @cached_property
    def nodes(self) -> Nodes:
        return self._nodes_of(self.capacity.inventory.by_address[gpu] for gpu in self.gpus)

    @cached_property
    def named(self) -> Nodes:
        """The nodes of what the request names beside GPUs, but for bridges: NVSwitches are near no GPU."""
        devices = frozenset[Subject](self.request.devices)
        functions = self.capacity.inventory.functions if devices else ()
        cards = {
            function.address.slot: function
            for function in functions
            if not function.class_code.startswith(BRIDGES)
            and (function.address in devices or not devices.isdisjoint(function.mdevs))
        }
        return self._nodes_of(cards.values())

    def _nodes_of(self, functions: Iterable[Function]) -> Nodes:
        nodes = {function.address: node_of(function, self.capacity) for function in functions}
        return {address: UNKNOWN_NODE if node is None else node for address, node in nodes.items()}

    @cached_property
    def single(self) -> Trees:
        """The trees of GPUs that are given one by one."""
        return self._trees(in_fabric=False)

    @cached_property
    def in_fabric(self) -> Trees:
        return self._trees(in_fabric=True)

    def _trees(self, *, in_fabric: bool) -> Trees:
        nodes = {gpu: node for gpu, node in self.nodes.items() if (gpu in self.fabric) is in_fabric}
        return meetings(self.capacity.inventory, nodes, self.capacity.peers, self.named)

    def used_nodes(self, gpus: Sequence[PciAddress]) -> Mapping[int, int]:
        """Return the nodes of these GPUs, with the number of them on each."""
        used_nodes: dict[int, int] = {}
        for gpu in gpus:
            used_nodes[self.nodes[gpu]] = used_nodes.get(self.nodes[gpu], 0) + 1
        return dict(sorted(used_nodes.items()))

    def score(self, gpus: Sequence[PciAddress]) -> Score:
        """Return the score of a choice that `allows`, from its definition."""
        whole, named = frozenset(gpus), self.named.values()
        trees = self.in_fabric if whole & self.fabric else self.single
        lost = sum(not whole.isdisjoint(partition) and whole != frozenset(partition) for partition in self.partitions)
        used = [node for node, tree in trees.items() if node in named or not whole.isdisjoint(tree.gpus)]
        nodes, unknown = {*used, *named} - {UNKNOWN_NODE}, sum(self.nodes[gpu] == UNKNOWN_NODE for gpu in gpus)
        far, cost = self.node_resources.distances.among(sorted(nodes)), cost_of(self._together(trees, used), whole)
        return Score(unknown, len(nodes), far, cost.near, cost.distance, cost.unlinked, lost, cost.stranded)

    def _together(self, trees: Trees, nodes: Sequence[int]) -> Meeting:
        below = tuple(trees[node] for node in nodes)
        return Meeting(Kind.NODE, "", _BETWEEN_NODES, (), below, named=tuple(self.named))

    def allows(self, gpus: Sequence[PciAddress]) -> bool:
        """Return whether a choice is possible: its nodes, its CPUs and hugepages, and partitions are whole."""
        nodes = {*self.used_nodes(gpus), *self.named.values()}
        if self.request.numa == "same" and len(nodes) > 1:
            return False
        if not self.fabric.isdisjoint(gpus) and frozenset(gpus) not in map(frozenset, self.partitions):
            return False
        return self.node_resources.fit(nodes)

    def choice(self) -> tuple[PciAddress, ...] | None:
        """Return the GPUs with the best score; None if there is no choice."""
        options = [in_order(partition) for partition in self.partitions if len(partition) == self.request.gpus]
        choices = [gpus for gpus in options if self.allows(gpus)]
        single = self._single_choice()
        if single is not None:
            choices.append(single)
        return min(choices, key=lambda gpus: (self.score(gpus), [gpu.order for gpu in gpus]), default=None)

    def _single_choice(self) -> tuple[PciAddress, ...] | None:
        """Return the best choice of GPUs outside partitions: of unknown nodes only where others do not do."""
        number, elsewhere = self.request.gpus, self.single.get(UNKNOWN_NODE)
        if chosen := self._on_nodes(number):
            return chosen
        for unknown in range(1, min(number, len(elsewhere.gpus)) + 1) if elsewhere else ():
            beside = self._on_nodes(number - unknown, UNKNOWN_NODE)
            if elsewhere and beside is not None:
                elsewhere.best(unknown)
                return in_order((*beside, *elsewhere.chosen(unknown)))
        return None

    def _on_nodes(self, number: int, *others: int) -> tuple[PciAddress, ...] | None:
        """Return the best choice on known nodes, which with `others` must have what else is asked for."""
        trees = {node: tree for node, tree in self.single.items() if node != UNKNOWN_NODE}
        named, resources = {*self.named.values()}, self.node_resources
        elsewhere = named - {UNKNOWN_NODE, *trees}
        beside = tuple(sorted(named.intersection(trees)))
        if not number:
            return () if resources.fit((*others, *beside, *elsewhere)) else None
        order = sorted({*trees}.difference(beside), key=lambda node: (-len(trees[node].gpus), node))
        most = int(not beside) if self.request.numa == "same" else min(number, len(order))
        for size in range(most + 1):
            sets = [
                tuple(sorted((*beside, *nodes)))
                for nodes in islice(combinations(order, size), _MOST_SETS)
                if sum(len(trees[node].gpus) for node in (*beside, *nodes)) >= number
                if resources.fit((*others, *beside, *nodes, *elsewhere))
            ]
            if sets:
                far = [resources.distances.among((*nodes, *elsewhere)) for nodes in sets]
                nearest = [nodes for nodes, distance in zip(sets, far, strict=True) if distance == min(far)]
                return self._best(nearest, number)
        return None

    def _best(self, sets: Sequence[tuple[int, ...]], number: int) -> tuple[PciAddress, ...]:
        """Return the best choice on one of the sets. Each node gives a GPU at least, unless it has a named function."""
        trees, place = self.single, self._together(self.single, ())
        parts = {node: trees[node].costs(number, place) for node in {node for nodes in sets for node in nodes}}
        alike: dict[tuple[int, ...], int] = {}
        kinds = {node: alike.setdefault((len(trees[node].gpus), *costs), len(alike)) for node, costs in parts.items()}
        known: dict[tuple[int, ...], int] = {}  # sets of nodes that are alike have the same costs

        def cost(nodes: tuple[int, ...]) -> int:
            key = tuple(sorted(kinds[node] for node in nodes))
            if key not in known:
                known[key] = division(nodes).costs[number]
            return known[key]

        def division(nodes: tuple[int, ...]) -> Best:
            least = [int(node not in self.named.values()) for node in nodes]
            return divided([parts[node] for node in nodes], number, self._together(trees, nodes), least)

        nodes = min(sets, key=lambda nodes: (cost(nodes), nodes))
        split = division(nodes).splits[number]
        return in_order(gpu for node, part in zip(nodes, split, strict=True) for gpu in trees[node].chosen(part))
