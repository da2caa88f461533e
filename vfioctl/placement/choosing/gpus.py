"""Chooses the GPUs of a claim: single ones, or a partition of the fabric manager. Pure.

They are on as few NUMA nodes as possible, near each other, and close together by PCIe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, islice

from vfioctl.core.frozen import value_class
from vfioctl.inventory.model.functions import Function
from vfioctl.inventory.model.values import PciAddress, Subject
from vfioctl.placement.choosing.node_resources import UNKNOWN_NODE, Distances, NodeResources, node_of
from vfioctl.placement.choosing.tree import Best, Kind, Meeting, Nodes, cost_of, divided, meetings
from vfioctl.placement.model.capacity import Capacity
from vfioctl.placement.model.claims import ClaimRequest

_MOST_SETS = 4096
"""The most sets of nodes of one size that are looked at. A host with 12 nodes has fewer, whatever is asked for."""
_BETWEEN_NODES = 2 * Kind.NODE
BRIDGES = "06"
"""The class of bridges; NVSwitches have it too (0680)."""


@dataclass(frozen=True, slots=True, order=True)
class Score:
    """How good a choice is. Less is better, and an earlier part takes precedence."""

    unknown: int
    """The number of GPUs whose NUMA node is not known."""
    nodes: int
    """The number of NUMA nodes that are known, also of the functions that the request names."""
    far: int
    """The sum of the distances of these nodes."""
    near: int
    """The sum of the PCIe distances of all GPUs from the functions that the request names beside them."""
    distance: int
    """The sum of the PCIe distances of all pairs of GPUs; see `Kind`."""
    unlinked: int
    """Minus the number of pairs that are peers over NVLink."""
    lost: int
    """The number of other partitions that could be chosen now, and could not afterwards."""
    stranded: int
    """The number of free GPUs that remain at places of which some are taken, for each such place."""


Trees = Mapping[int, Meeting]


def score_of(gpus: frozenset[PciAddress], trees: Trees, distances: Distances, named: Nodes, *, lost: int = 0) -> Score:
    """Return the score of any choice, from its definition."""
    used = [node for node, tree in trees.items() if node in named.values() or not gpus.isdisjoint(tree.gpus)]
    cost, nodes = cost_of(_together(trees, used, named), gpus), {*used, *named.values()} - {UNKNOWN_NODE}
    unknown = len(gpus.intersection(trees[UNKNOWN_NODE].gpus)) if UNKNOWN_NODE in trees else 0
    far = distances.among(sorted(nodes))
    return Score(unknown, len(nodes), far, cost.near, cost.distance, cost.unlinked, lost, cost.stranded)


def _together(trees: Trees, nodes: Sequence[int], named: Nodes) -> Meeting:
    return Meeting(Kind.NODE, "", _BETWEEN_NODES, (), tuple(trees[node] for node in nodes), named=tuple(named))


def choose_gpus(
    trees: Trees,
    number: int,
    fit: Callable[[Sequence[int]], bool],
    distances: Distances,
    named: Nodes,
    *,
    one_node: bool = False,
) -> tuple[PciAddress, ...] | None:
    """Return the choice with the best score; None if there is none. `fit`: whether nodes have what else is asked for.

    `named`: the functions that the request names beside them. `one_node`: whether all must be on one node. GPUs whose
    node is not known are chosen only where others do not do.
    """
    known = {node: tree for node, tree in trees.items() if node != UNKNOWN_NODE}
    if chosen := _on_nodes(known, number, fit, distances, named, one_node=one_node):
        return chosen
    elsewhere = trees.get(UNKNOWN_NODE)
    for unknown in range(1, min(number, len(elsewhere.gpus)) + 1) if elsewhere else ():

        def fit_beside(nodes: Sequence[int]) -> bool:
            return fit((UNKNOWN_NODE, *nodes))

        beside = _on_nodes(known, number - unknown, fit_beside, distances, named, one_node=one_node)
        if elsewhere and beside is not None:
            elsewhere.best(unknown)
            return tuple(sorted((*beside, *elsewhere.chosen(unknown)), key=lambda gpu: gpu.order))
    return None


def _on_nodes(
    trees: Trees,
    number: int,
    fit: Callable[[Sequence[int]], bool],
    distances: Distances,
    named: Nodes,
    *,
    one_node: bool,
) -> tuple[PciAddress, ...] | None:
    elsewhere = {*named.values()} - {UNKNOWN_NODE, *trees}
    beside = tuple(sorted({*named.values()}.intersection(trees)))
    if not number:
        return () if fit((*beside, *elsewhere)) else None
    order = sorted({*trees}.difference(beside), key=lambda node: (-len(trees[node].gpus), node))
    for size in range(1 + (1 - min(1, len(beside)) if one_node else min(number, len(order)))):
        sets = [
            tuple(sorted((*beside, *nodes)))
            for nodes in islice(combinations(order, size), _MOST_SETS)
            if sum(len(trees[node].gpus) for node in (*beside, *nodes)) >= number
            if fit((*beside, *nodes, *elsewhere))
        ]
        if sets:
            far = [distances.among((*nodes, *elsewhere)) for nodes in sets]
            nearest = [nodes for nodes, distance in zip(sets, far, strict=True) if distance == min(far)]
            return _best(nearest, trees, number, named)
    return None


def _best(sets: Sequence[tuple[int, ...]], trees: Trees, number: int, named: Nodes) -> tuple[PciAddress, ...]:
    """Return the best choice on one of the sets; each node gives at least one GPU, unless a named function is there."""
    place = _together(trees, (), named)
    parts = {node: trees[node].costs(number, place) for node in {node for nodes in sets for node in nodes}}
    alike: dict[tuple[int, ...], int] = {}
    kinds = {node: alike.setdefault(tuple(costs), len(alike)) for node, costs in parts.items()}
    known: dict[tuple[int, ...], int] = {}  # sets of nodes that are alike have the same costs

    def cost(nodes: tuple[int, ...]) -> int:
        key = tuple(sorted(kinds[node] for node in nodes))
        if key not in known:
            known[key] = division(nodes).costs[number]
        return known[key]

    def division(nodes: tuple[int, ...]) -> Best:
        least = [int(node not in named.values()) for node in nodes]
        return divided([parts[node] for node in nodes], number, _together(trees, nodes, named), least)

    nodes = min(sets, key=lambda nodes: (cost(nodes), nodes))
    split = division(nodes).splits[number]
    gpus = (gpu for node, part in zip(nodes, split, strict=True) for gpu in trees[node].chosen(part))
    return tuple(sorted(gpus, key=lambda gpu: gpu.order))


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
        """The nodes of the cards that the request names beside GPUs, and of parents of mediated devices.

        Bridges such as NVSwitches are near no GPU.
        """
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
        """Return the score of a choice that `allows`."""
        whole = frozenset(gpus)
        trees = self.in_fabric if whole & self.fabric else self.single
        lost = sum(not whole.isdisjoint(partition) and whole != frozenset(partition) for partition in self.partitions)
        return score_of(whole, trees, self.node_resources.distances, self.named, lost=lost)

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
        number, one_node = self.request.gpus, self.request.numa == "same"
        options = [
            tuple(sorted(partition, key=lambda gpu: gpu.order))
            for partition in self.partitions
            if len(partition) == number
        ]
        choices = [gpus for gpus in options if self.allows(gpus)]
        single = choose_gpus(
            self.single,
            number,
            self.node_resources.fit,
            self.node_resources.distances,
            self.named,
            one_node=one_node,
        )
        if single is not None:
            choices.append(single)
        return min(choices, key=lambda gpus: (self.score(gpus), [gpu.order for gpu in gpus]), default=None)
