"""Reads how much memory NUMA nodes have, and how much is free there. Source: drivers/base/node.c, node_read_meminfo."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from vfioctl.kernel.lenient import text_of
from vfioctl.kernel.protocol import FileReader

_LINE = re.compile(r"^Node [0-9]{1,4} (MemFree|Inactive\(file\)|SReclaimable): +([0-9]{1,15}) kB$", re.MULTILINE)
"""What is free, and what the kernel gives back at once: cached files that nobody uses, and caches of its own."""

_TOTAL = re.compile(r"^Node [0-9]{1,4} MemTotal: +([0-9]{1,15}) kB$", re.MULTILINE)


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
