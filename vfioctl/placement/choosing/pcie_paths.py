"""Builds the tree of places where the PCIe paths of GPUs meet, from the bridges above them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from vfioctl.inventory.model.functions import Inventory
from vfioctl.inventory.model.values import PciAddress
from vfioctl.placement.choosing.tree import Kind, Meeting

Peers = Mapping[PciAddress, frozenset[PciAddress]]
Path = tuple[str, ...]
"""The host bridge, the root port, and the switches' ports above a GPU."""
_KINDS = (Kind.NODE, Kind.BRIDGE, Kind.PORT)
"""By depth; what is deeper is a switch."""


def meetings(inventory: Inventory, gpus: Mapping[PciAddress, int], peers: Peers) -> Mapping[int, Meeting]:
    """Return the tree of each node. `gpus`: the node of each GPU, or UNKNOWN_NODE."""
    nodes: dict[int, list[tuple[PciAddress, Path]]] = {}
    for gpu, node in gpus.items():
        nodes.setdefault(node, []).append((gpu, path_of(inventory, gpu)))
    return {node: _built(str(node), 0, nodes[node], peers) for node in sorted(nodes)}


def path_of(inventory: Inventory, address: PciAddress) -> Path:
    """Return what is above a function, the host bridge first, which is named by its domain and bus."""
    ports: list[PciAddress] = []
    above = inventory.by_address[address].upstream
    while above is not None and above in inventory.by_address and above not in ports:
        ports.append(above)
        above = inventory.by_address[above].upstream
    top = ports[-1] if ports else address
    return (top.rpartition(":")[0], *reversed(ports))


def _built(name: str, depth: int, members: Sequence[tuple[PciAddress, Path]], peers: Peers) -> Meeting:
    groups: dict[str, list[tuple[PciAddress, Path]]] = {}
    for gpu, path in members:
        groups.setdefault(path[depth] if depth < len(path) else gpu, []).append((gpu, path))
    leaves = [group[0][0] for group in groups.values() if len(group) == 1]
    below = [_built(key, depth + 1, group, peers) for key, group in groups.items() if len(group) > 1]
    if depth and not leaves and len(below) == 1:
        return below[0]
    kind = _KINDS[depth] if depth < len(_KINDS) else Kind.SWITCH
    distance = int(kind)
    if kind is Kind.SWITCH:
        distance = min(Kind.PORT - 1, 1 + max((child.distance for child in below), default=0))
    return _linked(Meeting(kind, name, distance, tuple(leaves), tuple(below)), peers)


def _linked(place: Meeting, peers: Peers) -> Meeting:
    """Return the place with its leaves in groups of NVLink peers."""
    if not any(gpu in peers for gpu in place.gpus):
        return place
    if _are_peers(place.gpus, peers):
        return Meeting(place.kind, place.name, place.distance, place.leaves, place.below, linked=True)
    groups = _groups(place.leaves, peers)
    inner = (Meeting(place.kind, place.name, place.distance, group, linked=True) for group in groups if len(group) > 1)
    alone = tuple(group[0] for group in groups if len(group) == 1)
    return Meeting(place.kind, place.name, place.distance, alone, (*place.below, *inner))


def _are_peers(gpus: Sequence[PciAddress], peers: Peers) -> bool:
    everyone = frozenset(gpus)
    return all(everyone <= peers.get(gpu, frozenset()) | {gpu} for gpu in gpus)


def _groups(gpus: Iterable[PciAddress], peers: Peers) -> list[tuple[PciAddress, ...]]:
    """Return groups in which all are peers of each other; each GPU joins the first group that it can."""
    groups: list[tuple[PciAddress, ...]] = []
    for gpu in gpus:
        mine = peers.get(gpu, frozenset())
        index = next((i for i, group in enumerate(groups) if mine.issuperset(group)), None)
        if index is None:
            groups.append((gpu,))
        else:
            groups[index] = (*groups[index], gpu)
    return groups
