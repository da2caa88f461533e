"""The places where PCIe paths of GPUs meet, and the best choice of GPUs below one. Pure. The cost of a choice is a sum
over these places, and each part depends only on the number of GPUs chosen below the place. So the best choice below a
place consists of best choices below its children. Dynamic programming by place and number finds it; trying all choices
of 8 among 1,024 GPUs would take for ever."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property

from vfioctl.core.frozen import value_class
from vfioctl.inventory.model.functions import Inventory
from vfioctl.inventory.model.numa_affinity import above
from vfioctl.inventory.model.values import PciAddress

_NEAR, _DISTANCE, _LINKED = 1 << 72, 1 << 44, 1 << 22
"""Units of the parts of a cost, so large that an earlier part takes precedence over all that follow."""


class Kind(IntEnum):
    """What GPUs meet at. The value is the distance of two GPUs that meet there."""

    SWITCH = 1
    """The lowest switch; one above it counts one more, up to PORT."""
    PORT = 7
    BRIDGE = 8
    NODE = 16


@value_class
class Cost:
    """The parts of a cost, the first one first."""

    near: int = 0
    """The sum of the distances of all GPUs from the functions that the request names beside them."""
    distance: int = 0
    """The sum of the distances of all pairs."""
    unlinked: int = 0
    """Minus the number of pairs that are peers over NVLink."""
    stranded: int = 0
    """The number of free GPUs that remain at places of which some GPUs are taken, for each such place."""


@value_class
class Best:
    """The least costs of choosing 0, 1, 2, ... GPUs, and how each number is divided among the parts of a place."""

    costs: dict[int, int]
    splits: dict[int, tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class Meeting:
    """A place where PCIe paths of GPUs meet."""

    kind: Kind
    name: str
    """The address of a switch or port, the domain and bus of a host bridge, the number of a node."""
    distance: int
    leaves: tuple[PciAddress, ...]
    """GPUs of which no two meet before."""
    below: tuple[Meeting, ...] = ()
    linked: bool = False
    """Whether all GPUs below it are peers of each other over NVLink."""
    named: tuple[PciAddress, ...] = ()
    """The functions below it that the request names beside a number of GPUs."""
    tables: dict[int, Best] = field(default_factory=dict, repr=False)

    @cached_property
    def gpus(self) -> tuple[PciAddress, ...]:
        """All GPUs below it."""
        return (*self.leaves, *(gpu for child in self.below for gpu in child.gpus))

    def best(self, most: int) -> Best:
        """The best choices of up to `most` GPUs below it. The parts are the leaves, then the children."""
        most = min(most, len(self.gpus))
        if most not in self.tables:
            parts = [[0] * (min(most, len(self.leaves)) + 1), *(child.costs(most, self) for child in self.below)]
            self.tables[most] = divided(parts, most, self)
        return self.tables[most]

    def costs(self, most: int, above: Meeting) -> list[int]:
        """The costs of its best choices without those of their pairs at the place above, which has all pairs."""
        return [cost - above.of_pairs(number, len(self.named)) for number, cost in self.best(most).costs.items()]

    def own_cost(self, number: int) -> int:
        """The cost of a choice at this place: of its pairs, and of GPUs that are left alone."""
        left = len(self.gpus) - number
        return self.of_pairs(number, len(self.named)) + (left if number else 0)

    def of_pairs(self, number: int, named: int) -> int:
        pairs = number * (number - 1) // 2
        return number * named * self.distance * _NEAR + pairs * (self.distance * _DISTANCE - self.linked * _LINKED)

    def chosen(self, number: int) -> tuple[PciAddress, ...]:
        """The best choice of that number of GPUs."""
        most = next(most for most in sorted(self.tables) if number in self.tables[most].splits)
        leaves, *parts = self.tables[most].splits[number]
        chosen = [child.chosen(part) for child, part in zip(self.below, parts, strict=True) if part]
        return (*self.leaves[:leaves], *(gpu for gpus in chosen for gpu in gpus))


def divided(parts: Sequence[Sequence[int]], most: int, place: Meeting, least: Sequence[int] = ()) -> Best:
    """Divide up to `most` GPUs among the parts of a place. `parts`: for each, the costs of 0, 1, ... of its GPUs.
    `least`: how many GPUs come at least from each part; 0 if empty. Among equal choices, the first parts give most."""
    best: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, ())}
    for costs, fewest in zip(parts, least or [0] * len(parts), strict=True):
        longer: dict[int, tuple[int, tuple[int, ...]]] = {}
        for number, (cost, split) in best.items():
            for more in range(fewest, min(len(costs) - 1, most - number) + 1):
                total, known = cost + costs[more], longer.get(number + more)
                if known is None or total < known[0] or (total == known[0] and (*split, more) > known[1]):
                    longer[number + more] = total, (*split, more)
        best = longer
    numbers = sorted(best)
    costs_of = {number: best[number][0] + place.own_cost(number) for number in numbers}
    return Best(costs_of, {number: best[number][1] for number in numbers})


def cost_of(place: Meeting, gpus: frozenset[PciAddress]) -> Cost:
    """The cost of any choice, from its definition."""
    here = [gpu for gpu in place.gpus if gpu in gpus]
    pairs = len(here) * (len(here) - 1) // 2
    near, distance, linked = len(here) * len(place.named) * place.distance, pairs * place.distance, pairs * place.linked
    stranded = len(place.gpus) - len(here) if here else 0
    for child in place.below:
        inner = cost_of(child, gpus)
        number = sum(gpu in gpus for gpu in child.gpus)
        inside = number * (number - 1) // 2
        near += inner.near - number * len(child.named) * place.distance
        distance += inner.distance - inside * place.distance
        linked += -inner.unlinked - inside * place.linked
        stranded += inner.stranded
    return Cost(near, distance, -linked, stranded)


Peers = Mapping[PciAddress, frozenset[PciAddress]]
Nodes = Mapping[PciAddress, int]
"""The NUMA node of each function, or UNKNOWN_NODE."""
Path = tuple[str, ...]
"""The host bridge, the root port, and the switches' ports above a GPU."""
_KINDS = (Kind.NODE, Kind.BRIDGE, Kind.PORT)
"""By depth; what is deeper is a switch."""


def meetings(inventory: Inventory, gpus: Nodes, peers: Peers, named: Nodes) -> Mapping[int, Meeting]:
    """Return the tree of each node that has GPUs. `named`: see `Meeting`."""
    nodes: dict[int, list[tuple[PciAddress, Path]]] = {}
    for function, node in (*gpus.items(), *named.items()):
        nodes.setdefault(node, []).append((function, path_of(inventory, function)))
    return {node: _built(str(node), 0, nodes[node], peers, named) for node in sorted(set(gpus.values()))}


def path_of(inventory: Inventory, address: PciAddress) -> Path:
    """Return what is above a function, the host bridge first, which is named by its domain and bus."""
    ports = [bridge.address for bridge in above(inventory.by_address[address], inventory)]
    top = ports[-1] if ports else address
    return (top.rpartition(":")[0], *reversed(ports))


def _built(name: str, depth: int, members: Sequence[tuple[PciAddress, Path]], peers: Peers, named: Nodes) -> Meeting:
    groups: dict[str, list[tuple[PciAddress, Path]]] = {}
    for gpu, path in members:
        groups.setdefault(path[depth] if depth < len(path) else gpu, []).append((gpu, path))
    leaves = [group[0][0] for group in groups.values() if len(group) == 1]
    below = [_built(key, depth + 1, group, peers, named) for key, group in groups.items() if len(group) > 1]
    if depth and not leaves and len(below) == 1:
        return below[0]
    kind = _KINDS[depth] if depth < len(_KINDS) else Kind.SWITCH
    distance = int(kind)
    if kind is Kind.SWITCH:
        distance = min(Kind.PORT - 1, 1 + max((child.distance for child in below), default=0))
    gpus = tuple(leaf for leaf in leaves if leaf not in named)
    beside = tuple(function for function, _ in members if function in named)
    return _linked(Meeting(kind, name, distance, gpus, tuple(below), named=beside), peers)


def _linked(place: Meeting, peers: Peers) -> Meeting:
    """Return the place with its leaves in groups of NVLink peers."""
    if not any(gpu in peers for gpu in place.gpus):
        return place
    if _are_peers(place.gpus, peers):
        return replace(place, linked=True)
    groups = _groups(place.leaves, peers)
    inner = (Meeting(place.kind, place.name, place.distance, group, linked=True) for group in groups if len(group) > 1)
    alone = tuple(group[0] for group in groups if len(group) == 1)
    return replace(place, leaves=alone, below=(*place.below, *inner))


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
