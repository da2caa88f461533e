"""Chooses the GPUs of a claim: single ones, or a partition of the fabric manager. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from vfioctl.core.frozen import value_class
from vfioctl.inventory.model.values import PciAddress
from vfioctl.placement.choosing.node_resources import UNKNOWN_NODE, NodeResources, node_of
from vfioctl.placement.choosing.nodes import Score, Trees, choose_gpus, score_of
from vfioctl.placement.choosing.tree import meetings
from vfioctl.placement.model.capacity import Capacity
from vfioctl.placement.model.request import ClaimRequest


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
    def nodes(self) -> Mapping[PciAddress, int]:
        nodes = {gpu: node_of(self.capacity.inventory.by_address[gpu], self.capacity) for gpu in self.gpus}
        return {gpu: UNKNOWN_NODE if node is None else node for gpu, node in nodes.items()}

    @cached_property
    def single(self) -> Trees:
        """The trees of GPUs that are given one by one."""
        return self._trees(in_fabric=False)

    @cached_property
    def in_fabric(self) -> Trees:
        return self._trees(in_fabric=True)

    def _trees(self, *, in_fabric: bool) -> Trees:
        nodes = {gpu: node for gpu, node in self.nodes.items() if (gpu in self.fabric) is in_fabric}
        return meetings(self.capacity.inventory, nodes, self.capacity.peers)

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
        return score_of(whole, trees, self.node_resources.distances, lost=lost)

    def allows(self, gpus: Sequence[PciAddress]) -> bool:
        """Return whether a choice is possible: its nodes, its CPUs and hugepages, and partitions are whole."""
        nodes = self.used_nodes(gpus)
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
            self.single, number, self.node_resources.fit, self.node_resources.distances, one_node=one_node
        )
        if single is not None:
            choices.append(single)
        return min(choices, key=lambda gpus: (self.score(gpus), [gpu.order for gpu in gpus]), default=None)
