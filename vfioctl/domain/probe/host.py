"""Reads the host's NUMA nodes and cores: their memory, and of which kind each core is. May not write."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from vfioctl.errors import BadSpec
from vfioctl.kernel.lenient import text_of
from vfioctl.units import parse_cpu_list

if TYPE_CHECKING:
    from vfioctl.kernel.protocol import FileReader

_LINE = re.compile(r"^Node [0-9]{1,4} (MemFree|Inactive\(file\)|SReclaimable): +([0-9]{1,15}) kB$", re.MULTILINE)
"""What is free, and what the kernel gives back at once: cached files that nobody uses, and caches of its own.
Source: drivers/base/node.c, node_read_meminfo."""
_TOTAL = re.compile(r"^Node [0-9]{1,4} MemTotal: +([0-9]{1,15}) kB$", re.MULTILINE)
_INTEL = {"cpu_core": "performance cores", "cpu_atom": "efficient cores", "cpu_lowpower": "low-power cores"}
"""Of hybrid processors, each with a PMU (Documentation/admin-guide/perf, arch/x86/events/intel/core.c)."""


def read_free_memory(kernel: FileReader, nodes: Iterable[int]) -> Mapping[int, int]:
    """Return the free bytes of each node; nodes that do not report it are left out."""
    free = {}
    for node in nodes:
        parts = dict(_LINE.findall(text_of(kernel, f"/sys/devices/system/node/node{node}/meminfo")))
        if "MemFree" in parts:
            free[node] = 1024 * sum(int(size) for size in parts.values())
    return free


def read_all_memory(kernel: FileReader, nodes: Iterable[int]) -> int | None:
    """Return the bytes of all nodes together; None if one of them does not report it, or there is none."""
    totals = [_TOTAL.search(text_of(kernel, f"/sys/devices/system/node/node{node}/meminfo")) for node in nodes]
    return 1024 * sum(int(match[1]) for match in totals if match) if totals and all(totals) else None


def read_core_kinds(reader: FileReader, cpus: Iterable[int]) -> Mapping[str, Sequence[int]]:
    """Return these CPUs by the kind of their core; all under one empty name where the kernel reports no kinds."""
    intel = {cpu: kind for pmu, kind in _INTEL.items() for cpu in _cpus(reader, f"/sys/devices/{pmu}/cpus")}
    by_kind: dict[str, list[int]] = {}
    for cpu in sorted(cpus):
        capacity = text_of(reader, f"/sys/devices/system/cpu/cpu{cpu}/cpu_capacity").strip()
        kind = intel.get(cpu) or (f"capacity {capacity}" if capacity.isdecimal() else "")
        by_kind.setdefault(kind, []).append(cpu)
    return by_kind


def _cpus(reader: FileReader, path: str) -> Sequence[int]:
    try:
        return parse_cpu_list(text_of(reader, path).strip())
    except BadSpec:
        return ()
