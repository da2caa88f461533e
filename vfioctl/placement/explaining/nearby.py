"""CPUs and hugepages near devices that are chosen already, and why these. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from vfioctl.inventory.model.functions import Function
from vfioctl.inventory.model.values import Subject
from vfioctl.placement.choosing.gpus import BRIDGES
from vfioctl.placement.choosing.node_resources import UNKNOWN_NODE, NodeResources, node_of
from vfioctl.placement.explaining.reasons import no_capacity, why_nearby, why_unknown
from vfioctl.placement.model.capacity import Capacity
from vfioctl.placement.model.placement import Placement
from vfioctl.placement.model.request import ClaimRequest


def nearby_of(
    request: ClaimRequest, capacity: Capacity, devices: Sequence[Subject], functions: Sequence[Function | None]
) -> Placement:
    """Return the placement of devices with what a request asks for beside them. Raises NoCapacity."""
    nodes = {UNKNOWN_NODE: 1} if request.cpus and not devices and not functions else dict[int, int]()
    unknown = []
    for index, (function, weight) in enumerate(zip(functions, _weights(devices, functions), strict=True)):
        node = node_of(function, capacity) if function else None
        if node is None and devices and weight:
            unknown.append(devices[index])
        number = UNKNOWN_NODE if node is None else node
        nodes[number] = nodes.get(number, 0) + weight
    nodes, rooms = dict(sorted(nodes.items())), NodeResources(request, capacity)
    if request.numa == "same" and len(nodes) > 1:
        names = ", ".join("unknown" if node == UNKNOWN_NODE else str(node) for node in nodes)
        raise no_capacity(f"the devices are on NUMA nodes {names}, not on one", (), {})
    if missing := rooms.missing_and_needed(nodes):
        hint = "ask for less, or for devices of more NUMA nodes"
        raise no_capacity(f"the NUMA nodes of the devices have {missing}", (), {}, hint=hint)
    if missing := rooms.missing_exactly():
        raise no_capacity(missing, (), {})
    nearby = rooms.nearby(nodes)
    return Placement(
        devices=tuple(devices),
        cpus=request.exact_cpus or nearby.cpus,
        hugepages=request.exact_hugepages or nearby.hugepages,
        nodes=tuple(node for node in nodes if node != UNKNOWN_NODE),
        why=(*why_unknown(unknown, capacity), *why_nearby(request, capacity, nearby)),
    )


def _weights(devices: Sequence[Subject], functions: Sequence[Function | None]) -> Sequence[int]:
    """Return how much each counts for the shares of nodes: a card once, bridges only if there is nothing else."""
    named, cards, weights = {*devices}, set[str](), []
    for function in functions:
        if function is None:
            weights.append(1)
            continue
        is_part = not function.is_vf and function.address in named and function.address.slot in cards
        cards.add(function.address.slot)
        weights.append(int(not (is_part or function.class_code.startswith(BRIDGES))))
    return weights if any(weights) else [1] * len(weights)
