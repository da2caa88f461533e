"""NUMA nodes: CPUs, memory, distances. Source: Documentation/ABI/stable/sysfs-devices-node."""

from __future__ import annotations

import re

from vfioctl.errors import BadSpec, KernelRefused
from vfioctl.inventory.model.functions import ProbeWarning
from vfioctl.inventory.model.groups import NumaNode
from vfioctl.kernel.lenient import names_in, text_of
from vfioctl.kernel.protocol import Reader
from vfioctl.units import CpuSet, parse_cpu_list

NODES = "/sys/devices/system/node"


def read_nodes(kernel: Reader) -> tuple[list[NumaNode], list[ProbeWarning]]:
    """Return all nodes by number, and warnings; no nodes on a kernel without NUMA."""
    nodes, warnings = [], []
    ids = sorted(int(name[4:]) for name in names_in(kernel, NODES) if re.fullmatch(r"node[0-9]{1,4}", name, re.ASCII))
    for number in ids:
        try:
            nodes.append(_node(kernel, number, ids))
        except (KernelRefused, BadSpec, ValueError) as error:
            warnings.append(ProbeWarning(subject=f"NUMA node {number}", text=str(error)))
    return nodes, warnings


def _node(kernel: Reader, number: int, ids: list[int]) -> NumaNode:
    home = f"{NODES}/node{number}"
    return NumaNode(
        id=number,
        cpus=CpuSet(parse_cpu_list(kernel.read(f"{home}/cpulist"))),
        memory_bytes=_memory(kernel, home),
        distances=_distances(kernel, home, ids),
    )


def _memory(kernel: Reader, home: str) -> int | None:
    match = re.search(r"MemTotal:\s+([0-9]+) kB", text_of(kernel, f"{home}/meminfo"))
    return int(match[1]) * 1024 if match else None


def _distances(kernel: Reader, home: str, ids: list[int]) -> dict[int, int]:
    try:
        numbers = [int(word) for word in kernel.read(f"{home}/distance").split()]
    except (KernelRefused, ValueError):
        return {}
    return dict(zip(ids, numbers, strict=False))
