"""Divides a domain's memory among its NUMA cells, by what each node of the host has free. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from vfioctl.claims.model.capacity import Capacity
from vfioctl.domain.model.layout import Choice
from vfioctl.domain.model.spec import PageSize, Policy
from vfioctl.errors import NoCapacity

ORDINARY = 1 << 20
"""Ordinary memory is divided in whole MiB."""
SIZES = {PageSize.GIB: 1 << 30, PageSize.MIB: 2 << 20}
_NAMES = {size: str(name) for name, size in SIZES.items()}


class Division(NamedTuple):
    """The bytes of each node, and the size of the pages; None for ordinary pages."""

    by_node: Mapping[int, int]
    page_size: int | None
    choices: tuple[Choice, ...]


def divide(
    total: int,
    vcpus: Mapping[int, int],
    capacity: Capacity,
    free: Mapping[int, int],
    *,
    pages: PageSize,
    policy: Policy,
) -> Division:
    """Return the memory of each node in proportion to its vCPUs, as far as it is free there.

    `vcpus`: the number of vCPUs by node. `free`: bytes of ordinary memory that are free, by node, where they are known.
    Raises NoCapacity.
    """
    refused: list[str] = []
    for size in _sizes(pages, total):
        rooms = {node: free_pages(capacity, node, size) for node in vcpus}
        given = _shares(-(-total // size), vcpus, rooms)
        if given is not None:
            return _found({node: number * size for node, number in given.items()}, size, tuple(refused), "")
        refused.append(f"{_NAMES[size]} pages: {_have(rooms, size)}, {-(-total // size)} are needed")
    asked = pages in SIZES
    if asked and policy is Policy.STRICT:
        raise NoCapacity(
            f"there are too few free hugepages of {pages}: {refused[0]}",
            hint="reserve more (vm.nr_hugepages, or default_hugepagesz=1G hugepages=N at boot), or ask for less memory",
        )
    weaker = "" if pages is PageSize.NONE else "the memory has ordinary pages: it is pinned and mapped more slowly"
    return _ordinary(total, vcpus, free, policy, tuple(refused), weaker)


def _sizes(pages: PageSize, total: int) -> Sequence[int]:
    if pages is PageSize.NONE:
        return ()
    return [SIZES[pages]] if pages in SIZES else [size for size in SIZES.values() if total % size == 0]


def free_pages(capacity: Capacity, node: int, size: int) -> int:
    """Return the hugepages of a size that nobody has claimed or uses on a node."""
    claimed = capacity.taken.hugepages.get((node, size), 0)
    pools = (pool for pool in capacity.hugepages if (pool.node, pool.size) == (node, size))
    return sum(max(0, min(pool.free, pool.total - claimed)) for pool in pools)


def _ordinary(
    total: int,
    vcpus: Mapping[int, int],
    free: Mapping[int, int],
    policy: Policy,
    refused: tuple[str, ...],
    weaker: str,
) -> Division:
    units = total // ORDINARY
    rooms = {node: free.get(node, total) // ORDINARY for node in vcpus}
    given = _shares(units, vcpus, rooms)
    if given is None:
        if policy is Policy.STRICT:
            raise NoCapacity(f"the nodes have too little free memory: {_have(rooms, ORDINARY)}, {units} MiB are needed")
        given = _shares(units, vcpus, dict.fromkeys(vcpus, units)) or {}
        weaker = f"there is too little free memory now: {_have(rooms, ORDINARY)}"
    elif unknown := [node for node in vcpus if node not in free]:
        weaker = weaker or f"how much memory is free is not known on {_nodes(unknown)}"
    return _found({node: number * ORDINARY for node, number in given.items()}, None, refused, weaker)


def _shares(units: int, weights: Mapping[int, int], rooms: Mapping[int, int]) -> Mapping[int, int] | None:
    """Divide units in proportion to weights, as far as there is room; None if there is too little in all."""
    if sum(rooms.values()) < units:
        return None
    found, left, weight = {}, units, sum(weights.values())
    for node in sorted(weights, key=lambda node: (rooms[node] * weight < units * weights[node], node), reverse=True):
        later = sum(rooms[other] for other in weights if other not in found and other != node)
        fair = round(left * weights[node] / weight) if weight else 0
        found[node] = max(min(fair, rooms[node]), left - later)
        left, weight = left - found[node], weight - weights[node]
    return {node: found[node] for node in weights}


def _found(by_node: Mapping[int, int], size: int | None, refused: tuple[str, ...], weaker: str) -> Division:
    chosen = ", ".join(f"{_amount(number)} of node {node}" for node, number in by_node.items())
    what = f"{_NAMES[size]} hugepages" if size else "ordinary pages"
    why = "the largest that are free in sufficient number" if size else "without hugepages"
    return Division(by_node, size, (Choice("memory", f"{what}: {chosen}", why, refused, weaker),))


def _amount(size: int) -> str:
    return f"{size >> 30} GiB" if size % (1 << 30) == 0 else f"{size >> 20} MiB"


def _have(rooms: Mapping[int, int], size: int) -> str:
    unit = _NAMES.get(size, "MiB") if size != ORDINARY else "MiB"
    return ", ".join(f"node {node} has {number} free ({unit})" for node, number in rooms.items())


def _nodes(nodes: Sequence[int]) -> str:
    return ", ".join(f"node {node}" for node in nodes)
