"""Reads the CPUs: which are online, which share a core, which share an L3 cache. May not write.
Sources: Documentation/ABI/stable/sysfs-devices-system-cpu, Documentation/admin-guide/cputopology.rst. The files of one
CPU list all that share its core or its cache, so most CPUs need no read of their own."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

from vfioctl.errors import BadSpec, KernelRefused
from vfioctl.inventory.model.machine import NumaNode
from vfioctl.kernel.lenient import text_of
from vfioctl.kernel.protocol import FileReader
from vfioctl.placement.model.capacity import Core, Topology
from vfioctl.units import format_cpu_list, parse_cpu_list

CPUS = "/sys/devices/system/cpu"
_ISOLATED = ("isolated", "nohz_full")
_LEVEL, _SHARED = "level", "shared_cpu_list"
_CORES, _CACHES = "the cores of CPUs", "the L3 caches of CPUs"
_UNKNOWN = {_CORES: "not known, so each CPU counts as a core", _CACHES: "not known"}
_Read = Callable[[int], Collection[int]]


def read_topology(kernel: FileReader, nodes: Sequence[NumaNode]) -> Topology:
    """Return the cores that have an online CPU. On a kernel without NUMA, all are of node 0."""
    unknown: dict[str, str] = {}
    node_of = _nodes(kernel, nodes, unknown)
    cores = _sharing(node_of, partial(_siblings, kernel), unknown, _CORES)
    caches = _sharing(node_of, _Caches(kernel).read, unknown, _CACHES)
    alone = set(node_of).difference(*cores)
    cache_of = {cpu: min(cache) for cache in caches for cpu in cache}
    whole = sorted([*(tuple(sorted(core)) for core in cores), *((cpu,) for cpu in alone)])
    cores_of = tuple(Core(core, node_of[core[0]], cache_of.get(core[0])) for core in whole)
    return Topology(cores_of, unknown, read_isolated(kernel).intersection(node_of))


def read_online(kernel: FileReader) -> Collection[int] | None:
    """Return the CPUs that are online; None if they cannot be read."""
    try:
        return parse_cpu_list(kernel.read(f"{CPUS}/online"))
    except (KernelRefused, BadSpec):
        return None


def read_isolated(kernel: FileReader) -> frozenset[int]:
    """Return the CPUs that are isolated from the scheduler, or that have no timer tick while they run one task.
    Source: Documentation/admin-guide/kernel-parameters.txt, isolcpus and nohz_full. Without the files that report them,
    as in older recordings, the command line is read. What has another form isolates nothing."""
    lists = [text_of(kernel, f"{CPUS}/{name}") for name in _ISOLATED if kernel.has(f"{CPUS}/{name}")]
    if not lists:
        lists = [",".join(cpus) for name, flags, cpus in _options(kernel) if not flags or "domain" in flags]
    isolated: set[int] = set()
    for text in lists:
        with suppress(BadSpec):  # the kernel writes (null) for no list
            isolated.update(parse_cpu_list(text))
    return frozenset(isolated)


def _options(kernel: FileReader) -> Iterator[tuple[str, Sequence[str], Sequence[str]]]:
    """Yield name, flags and ranges of each such option: `isolcpus=nohz,domain,1-3,5`."""
    for word in text_of(kernel, "/proc/cmdline").split():
        name, _, value = word.partition("=")
        if name in ("isolcpus", "nohz_full"):
            parts = value.split(",")
            yield name, [part for part in parts if part.isidentifier()], [p for p in parts if p[:1].isdigit()]


def _nodes(kernel: FileReader, nodes: Sequence[NumaNode], unknown: dict[str, str]) -> Mapping[int, int]:
    """Return the node of each online CPU. The kernel lists only online CPUs as those of a node."""
    node_of = {cpu: node.id for node in nodes for cpu in node.cpus}
    try:
        online = parse_cpu_list(kernel.read(f"{CPUS}/online"))
    except (KernelRefused, BadSpec) as error:
        unknown["online CPUs"] = error.symbol if isinstance(error, KernelRefused) else str(error)
        return dict(sorted(node_of.items()))
    if not node_of:
        return dict.fromkeys(online, 0)
    if homeless := [cpu for cpu in online if cpu not in node_of]:
        unknown[f"CPUs {format_cpu_list(homeless)}"] = "they are of no NUMA node, and are not used"
    return {cpu: node_of[cpu] for cpu in online if cpu in node_of}


def _sharing(cpus: Collection[int], read: _Read, unknown: dict[str, str], what: str) -> Iterable[set[int]]:
    """Return the sets of CPUs that share something. Sets that overlap, which the kernel never reports, are one."""
    sharing: dict[int, set[int]] = {}
    unread = []
    for cpu in cpus:
        if cpu in sharing:
            continue
        try:
            alike = {other for other in read(cpu) if other in cpus}
        except (KernelRefused, BadSpec):
            unread.append(cpu)
            continue
        alike = alike.union(*(sharing[other] for other in alike if other in sharing))
        sharing.update(dict.fromkeys(alike, alike))
    if unread := [cpu for cpu in unread if cpu not in sharing]:
        unknown[f"{what} {format_cpu_list(unread)}"] = _UNKNOWN[what]
    return {id(shared): shared for shared in sharing.values()}.values()


def _siblings(kernel: FileReader, cpu: int) -> Collection[int]:
    """Return the CPUs of a CPU's core, itself included. Raises KernelRefused, BadSpec."""
    return {cpu, *parse_cpu_list(kernel.read(f"{CPUS}/cpu{cpu}/topology/thread_siblings_list"))}


class _Caches:
    """Reads the CPUs that share an L3 cache. It has the same index at nearly every CPU of a host."""

    def __init__(self, kernel: FileReader) -> None:
        self._kernel, self._index = kernel, "index3"

    def read(self, cpu: int) -> Collection[int]:
        """Return the online CPUs that share a CPU's L3 cache; none if it has none. Raises KernelRefused, BadSpec."""
        home = f"{CPUS}/cpu{cpu}/cache"
        for index in self._indexes(home):
            with suppress(KernelRefused):
                texts = self._kernel.entries(f"{home}/{index}", (_LEVEL, _SHARED), ()).texts
                if texts.get(_LEVEL) == "3":
                    self._index = index
                    return {cpu, *parse_cpu_list(texts.get(_SHARED, ""))}
        return ()

    def _indexes(self, home: str) -> Iterator[str]:
        yield self._index
        yield from (name for name in self._kernel.children(home) if re.fullmatch(r"index[0-9]", name, re.ASCII))
