"""Reads how much memory is free on each NUMA node. Source: drivers/base/node.c, node_read_meminfo."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from vfioctl.kernel.lenient import text_of
from vfioctl.kernel.protocol import FileReader

_LINE = re.compile(r"^Node [0-9]{1,4} (MemFree|Inactive\(file\)|SReclaimable): +([0-9]{1,15}) kB$", re.MULTILINE)
"""What is free, and what the kernel gives back at once: cached files that nobody uses, and caches of its own."""


def read_free_memory(kernel: FileReader, nodes: Iterable[int]) -> Mapping[int, int]:
    """Return the free bytes of each node; nodes that do not tell are left out."""
    found = {}
    for node in nodes:
        parts = dict(_LINE.findall(text_of(kernel, f"/sys/devices/system/node/node{node}/meminfo")))
        if "MemFree" in parts:
            found[node] = 1024 * sum(int(size) for size in parts.values())
    return found
