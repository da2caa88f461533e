"""Divides a domain's memory among its NUMA cells, by what each node of the host has free. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from vfioctl.domain.model.layout import Choice
from vfioctl.domain.model.spec import DomainSpec, PageSize, Policy
from vfioctl.errors import BadSpec, NoCapacity
from vfioctl.placement.model.capacity import Capacity
from vfioctl.units import format_size

ORDINARY = 1 << 20
"""Ordinary memory is divided in whole MiB."""
SIZES = {PageSize.GIB: 1 << 30, PageSize.HALF_GIB: 512 << 20, PageSize.MIB: 2 << 20}
_NAMES = {size: str(name) for name, size in SIZES.items()}

_MORE_PAGES = (
    "reserve more (vm.nr_hugepages, or default_hugepagesz=1G hugepages=N at boot), ask for less memory, "
    "or say another size of --hugepages"
)
_MORE_MEMORY = "say a larger --memory, or a smaller size of --hugepages: each node with vCPUs needs a page"


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
    """Return each node's memory, in proportion to `vcpus` as far as it is free; each has some. `free`: bytes of
    ordinary memory by node, if known. Raises NoCapacity, and BadSpec if it does not fill the pages that must be."""
    refused: list[str] = []
    asked = pages in SIZES
    for size in _sizes(pages, total, capacity):
        units = -(-total // size)
        more = "" if units * size == total else f"{_amount(units * size)} instead of {_amount(total)}, in whole pages"
        if more and policy is Policy.STRICT:
            whole = _amount(units * size).replace(" ", "")
            hint = f"say --memory {whole}, or a smaller size of --hugepages"
            raise BadSpec(f"{_amount(total)} of memory are no whole number of {pages} pages", hint=hint)
        free_units = {node: free_pages(capacity, node, size) for node in vcpus}
        shares = _shares(units, vcpus, free_units)
        if shares is not None:
            why = "as asked for" if asked else "the largest that are free in sufficient number"
            by_node = {node: number * size for node, number in shares.items()}
            return _found(by_node, vcpus, size, why, tuple(refused), more)
        per_node = ", at least one on each" if sum(free_units.values()) >= units else ""
        have = ", ".join(f"node {node} has {number} free" for node, number in free_units.items())
        refused.append(f"{_NAMES[size]} pages: {have}, {units} are needed{per_node}")
    if asked and policy is Policy.STRICT:
        hint = _MORE_MEMORY if total < len(vcpus) * SIZES[pages] else _MORE_PAGES
        raise NoCapacity(f"there are too few free hugepages of {pages}: {refused[0]}", hint=hint)
    weaker = "" if pages is PageSize.NONE else "the memory has ordinary pages: it is pinned and mapped more slowly"
    return _ordinary(total, vcpus, free, policy, tuple(refused), weaker)


def _sizes(pages: PageSize, total: int, capacity: Capacity) -> Sequence[int]:
    """Return the sizes to try, the largest first; 512 MiB only on a host that has such pages."""
    if pages is PageSize.NONE:
        return ()
    if pages in SIZES:
        return [SIZES[pages]]
    sizes = {SIZES[PageSize.GIB], SIZES[PageSize.MIB], *(pool.size for pool in capacity.hugepages)}
    return [size for size in SIZES.values() if total % size == 0 and size in sizes]


def free_pages(capacity: Capacity, node: int, size: int) -> int:
    """Return the hugepages of a size that nobody has claimed or uses on a node."""
    claimed = capacity.taken.hugepages.get((node, size), 0)
    pools = (pool for pool in capacity.hugepages if (pool.node, pool.size) == (node, size))
    return sum(max(0, min(pool.free, pool.total - claimed)) for pool in pools)


def by_room(spec: DomainSpec, capacity: Capacity, free: Mapping[int, int]) -> Sequence[int]:
    """Return the nodes with CPUs, that with the most free memory of the largest pages of which it has enough first."""
    sizes = _sizes(spec.hugepages, spec.memory, capacity)

    def key(node: int) -> tuple[float, ...]:
        free_bytes = [size * free_pages(capacity, node, size) for size in sizes]
        enough = next((number for number, room in enumerate(free_bytes) if room >= spec.memory), len(free_bytes))
        return enough, *(-room for room in free_bytes[enough:] or free_bytes), -free.get(node, 0), node

    return sorted(capacity.topology.by_node, key=key)


def rooms_in_words(spec: DomainSpec, capacity: Capacity, free: Mapping[int, int]) -> str:
    """Return what each node with CPUs has free: of the largest pages that any has, else of ordinary memory."""
    nodes = sorted(capacity.topology.by_node)
    for size in _sizes(spec.hugepages, spec.memory, capacity):
        free_units = {node: free_pages(capacity, node, size) for node in nodes}
        if any(free_units.values()):
            return _have(free_units, size)
    return _have({node: free.get(node, 0) // ORDINARY for node in nodes}, ORDINARY)


def _ordinary(
    total: int, vcpus: Mapping[int, int], free: Mapping[int, int], policy: Policy, refused: tuple[str, ...], weaker: str
) -> Division:
    units = total // ORDINARY
    free_mib = {node: free.get(node, total) // ORDINARY for node in vcpus}
    shares = _shares(units, vcpus, free_mib)
    if shares is None:
        shares, have = _shares(units, vcpus, dict.fromkeys(vcpus, units)), _have(free_mib, ORDINARY)
        if shares is None or policy is Policy.STRICT:
            per_node = f", at least one on each of {len(vcpus)} nodes" if sum(free_mib.values()) >= units else ""
            raise NoCapacity(f"the nodes have too little free memory: {have}, {units} MiB are needed{per_node}")
        weaker = f"there is too little free memory now: {have}"
    elif unknown := [node for node in vcpus if node not in free]:
        nodes = ", ".join(f"node {node}" for node in unknown)
        weaker = weaker or f"how much memory is free is not known on {nodes}"
    by_node = {node: number * ORDINARY for node, number in shares.items()}
    return _found(by_node, vcpus, None, "without hugepages", refused, weaker)


def _shares(units: int, weights: Mapping[int, int], limits: Mapping[int, int]) -> Mapping[int, int] | None:
    """Divide units by weight, at least one each so that all CPUs have memory near; None if there is too little."""
    if sum(limits.values()) < units or units < len(weights) or not all(limits.values()):
        return None
    shares, left, weight = {}, units, sum(weights.values())
    for node in sorted(weights, key=lambda node: (limits[node] * weight < units * weights[node], node), reverse=True):
        remaining = [limits[other] for other in weights if other not in shares and other != node]
        fair = max(1, round(left * weights[node] / weight))
        shares[node] = max(min(fair, limits[node], left - len(remaining)), left - sum(remaining))
        left, weight = left - shares[node], weight - weights[node]
    return {node: shares[node] for node in weights}


def _found(
    by_node: Mapping[int, int],
    vcpus: Mapping[int, int],
    size: int | None,
    why: str,
    refused: tuple[str, ...],
    weaker: str,
) -> Division:
    chosen = ", ".join(f"{_amount(number)} of node {node}" for node, number in by_node.items())
    what = f"{_NAMES[size]} hugepages" if size else "ordinary pages"
    weaknesses = "; ".join(filter(None, (weaker, _far(by_node, vcpus))))
    return Division(by_node, size, (Choice("memory", f"{what}: {chosen}", why, refused, weaknesses),))


def _far(by_node: Mapping[int, int], vcpus: Mapping[int, int]) -> str:
    """Return which vCPUs have most of their memory on other nodes: theirs has less than half of their share."""
    total, number = sum(by_node.values()), sum(vcpus.values())
    few = [node for node, size in by_node.items() if 2 * size * number < total * vcpus[node]]
    parts = (f"{_amount(by_node[node])} on node {node} for {vcpus[node]} of {number} vCPUs" for node in few)
    return f"{', '.join(parts)}: they also use memory of other nodes, which is slower" if few else ""


def _amount(size: int) -> str:
    return f"{size >> 30} GiB" if size % (1 << 30) == 0 else f"{size >> 20} MiB"


def _have(free: Mapping[int, int], size: int) -> str:
    pages = f"free pages of {format_size(size)}" if size in _NAMES else "MiB free"
    return ", ".join(f"node {node} has {number} {pages}" for node, number in free.items())
