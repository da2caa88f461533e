"""Pins vCPUs in QEMU's order (threads, cores, dies, sockets): a core's threads, an L3 cache's cores together. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from vfioctl.domain.model.layout import Choice, Shape
from vfioctl.domain.model.spec import Smt
from vfioctl.errors import BadSpec, some_of
from vfioctl.placement.model.capacity import Capacity, Core, Topology
from vfioctl.units import format_cpu_list

_UNSEEN = "the guest does not see which cores share an L3 cache"


class Pinning(NamedTuple):
    """The host's CPUs of the vCPUs, in the order of the vCPUs, and by NUMA node."""

    by_node: Mapping[int, tuple[int, ...]]
    shape: Shape
    shares_cache: bool
    choices: tuple[Choice, ...]

    @property
    def pins(self) -> Mapping[int, int]:
        return dict(enumerate(cpu for cpus in self.by_node.values() for cpu in cpus))


def widest_core(topology: Topology) -> int:
    """Return the number of threads of a core: the most that any has."""
    return max((len(core.cpus) for core in topology.cores), default=1)


def even_width(topology: Topology) -> int:
    """Return the number of threads of each core; 1 if they have different numbers, which no guest's cores show."""
    is_even = len({len(core.cpus) for core in topology.cores}) <= 1
    return widest_core(topology) if is_even else 1


def needed(vcpus: int, smt: Smt, topology: Topology) -> int:
    """Return the number of CPUs that the vCPUs need. Raises BadSpec if they do not fill whole cores."""
    width = widest_core(topology)
    if smt is Smt.ISOLATE:
        return vcpus * width
    if vcpus % width and all(len(core.cpus) == width for core in topology.cores):
        hint = f"ask for {vcpus + width - vcpus % width} vCPUs, or give each vCPU a core with --smt isolate"
        raise BadSpec(f"{vcpus} vCPUs do not fill cores of {width} threads", hint=hint)
    return vcpus


def pin(cpus: Collection[int], vcpus: int, smt: Smt, topology: Topology, *, has_dies: bool = True) -> Pinning:
    """Return which of these CPUs each vCPU has; there are enough. `has_dies`: the guest's sockets can have dies."""
    known = {topology.core_of[cpu] for cpu in cpus if cpu in topology.core_of}
    cores = sorted(known, key=lambda core: (core.node, _cache(core), core.cpus))
    by_node, groups = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    threads: list[int] = []
    in_part = set()
    for core in cores:
        used = core.cpus[: min(1 if smt is Smt.ISOLATE else len(core.cpus), vcpus - sum(threads))]
        if used:
            by_node[core.node] += used
            groups[core.node].append(_cache(core))
            threads.append(len(used))
            if smt is Smt.TOGETHER and len(used) < len(core.cpus):
                in_part.add(core.node)
    shape, why, weaker = _shape(by_node, groups, threads, has_dies=has_dies)
    return Pinning(
        {node: tuple(pinned) for node, pinned in by_node.items()},
        shape,
        not weaker and shape.threads == widest_core(topology),
        (_shape_choice(shape, why, weaker), *_pin_choices(by_node, groups, shape.threads, in_part)),
    )


def _cache(core: Core) -> int:
    return -1 if core.cache is None else core.cache


def _shape(
    by_node: Mapping[int, Sequence[int]],
    groups: Mapping[int, Sequence[int]],
    threads_given: Sequence[int],
    *,
    has_dies: bool,
) -> tuple[Shape, str, str]:
    """Return the guest's processor, why, and what is weaker. `groups`: the L3 cache of each core, by node.
    `threads_given`: how many each core gives; those of a guest's core are these, if all give the same number."""
    threads, weaker = 1, "the guest takes threads of a core for cores: not all cores give it as many"
    if len(set(threads_given)) == 1:
        threads, weaker = threads_given[0], ""
    counts = {len(cpus) for cpus in by_node.values()}
    if len(counts) != 1:
        weaker = weaker or "the nodes give different numbers of cores, which sockets cannot show"
        return Shape(1, 1, sum(threads_given) // threads, threads), "one socket", weaker
    number = counts.pop() // threads
    if weaker:
        return Shape(len(by_node), 1, number, threads), "a socket for each node", weaker
    caches = [[len(list(same)) for _, same in groupby(cores)] for cores in groups.values()]
    even = {size for node in caches for size in node}
    if not has_dies:
        several = any(len(node) > 1 for node in caches)
        weaker = f"{_UNSEEN}: QEMU's machines for Arm have no dies" if several else ""
        return Shape(len(groups), 1, number, threads), "a socket for each node", weaker
    if len(even) == 1 and len({len(node) for node in caches}) == 1:
        dies = len(caches[0])
        return Shape(len(groups), dies, number // dies, threads), "a socket for each node, a die for each L3 cache", ""
    weaker = f"{_UNSEEN}: the caches give different numbers of cores"
    return Shape(len(groups), 1, number, threads), "a socket for each node", weaker


def _shape_choice(shape: Shape, why: str, weaker: str) -> Choice:
    parts = ((shape.sockets, "socket"), (shape.dies, "die"), (shape.cores, "core"), (shape.threads, "thread"))
    chosen = " x ".join(f"{number} {name}{'s' if number > 1 else ''}" for number, name in parts)
    return Choice("guest processor", chosen, why, weaker=weaker)


def _pin_choices(
    by_node: Mapping[int, Sequence[int]], groups: Mapping[int, Sequence[int]], threads: int, in_part: Collection[int]
) -> Iterable[Choice]:
    first = 0
    for cell, (node, cpus) in enumerate(by_node.items()):
        caches = len(set(groups[node]))
        cores = "cores, one of them in part," if node in in_part else "whole cores"
        side = ", threads of a core side by side" if threads > 1 else ""
        yield Choice(
            f"vCPUs {format_cpu_list(range(first, first + len(cpus)))} of cell {cell}",
            f"CPUs {', '.join(map(str, cpus[:8]))}{f' and {len(cpus) - 8} more' if len(cpus) > 8 else ''}",
            f"{cores} of NUMA node {node} at {caches} L3 cache{'s' if caches > 1 else ''}{side}",
        )
        first += len(cpus)


def housekeeping(capacity: Capacity, nodes: Collection[int]) -> tuple[int, ...]:
    """Return the host's CPUs for the emulator and I/O threads: those that stay with the host on these nodes."""
    own = capacity.housekeeping
    cpus = {cpu for node in nodes for core in capacity.topology.by_node.get(node, ()) for cpu in core.cpus}
    return tuple(sorted(cpus.intersection(own))) or tuple(sorted(own))


def shared(capacity: Capacity, chosen: Collection[int]) -> Iterator[Choice]:
    """Yield which of the chosen CPUs others have too, as those of a claim may be, by who has them."""
    by_owner = defaultdict[str, list[int]](list)
    for cpu in sorted(capacity.pinned.keys() & set(chosen)):
        by_owner[capacity.pinned[cpu]].append(cpu)
    for who, cpus in by_owner.items():
        why = "it is pinned there, and they were chosen all the same: the claim has them"
        weaker = f"also pinned by {who}, so that one waits for the other"
        yield Choice(f"other owners of CPUs {format_cpu_list(cpus)}", who, why, weaker=weaker)


def excluded(capacity: Capacity, chosen: Collection[int]) -> tuple[str, ...]:
    """Return which CPUs could not be chosen, each with the reason."""
    by_reason = defaultdict[str, list[int]](list)
    for cpu, (claim, owner) in capacity.taken.cpus.items():
        by_reason[f"held by {owner} (claim {claim})"].append(cpu)
    staying = capacity.housekeeping
    for cpu, who in capacity.pinned.items():
        if cpu not in staying and cpu not in chosen:
            by_reason[f"pinned by {who}"].append(cpu)
    by_reason["stay with the host"] += staying
    by_reason["reserved by the configuration"] += capacity.settings.reserved_cpus
    named = [f"CPUs {format_cpu_list(cpus)}: {why}" for why, cpus in by_reason.items() if cpus]
    return tuple(named[:20]) + ((some_of(named[20:], 0).strip(),) if len(named) > 20 else ())
