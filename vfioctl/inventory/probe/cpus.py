"""Reads the processor, the online CPUs, and NUMA nodes with their CPUs, memory and distances. May not write.

Sources: arch/x86/kernel/cpu/proc.c and arch/arm64/kernel/cpuinfo.c; Documentation/ABI/stable/sysfs-devices-node.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from vfioctl.errors import BadSpec, KernelRefused
from vfioctl.inventory.model.functions import ProbeWarning
from vfioctl.inventory.model.machine import NumaNode, Processor
from vfioctl.kernel.lenient import names_in, text_of
from vfioctl.kernel.protocol import FileReader, Reader
from vfioctl.units import CpuSet, format_cpu_list, parse_cpu_list, parse_cpu_mask

_FACT = re.compile(r"^(vendor_id|cpu family|model)\t*: (\S{1,64})$", re.MULTILINE)
_ARCHITECTURES = {
    "aarch64": re.compile(r"^CPU implementer\s*:", re.MULTILINE),
    "ppc64le": re.compile(r"^cpu\s*: POWER", re.MULTILINE),
    "s390x": re.compile(r"^vendor_id *: IBM/S390", re.MULTILINE),
    "loongarch64": re.compile(r"^(?:system type|Model Name)\s*: .*loongson", re.MULTILINE | re.IGNORECASE),
    "riscv64": re.compile(r"^isa\s*: rv64", re.MULTILINE),
}
"""The line by which each is known; all others are x86_64. Sources: show_cpuinfo in arch/powerpc/kernel/setup-common.c,
arch/s390/kernel/processor.c, arch/loongarch/kernel/proc.c and arch/riscv/kernel/cpu.c."""
_BITS = re.compile(r"^address sizes\s*:\s*([0-9]{1,3}) bits physical", re.MULTILINE)


def read_online(kernel: FileReader) -> tuple[int, ...]:
    """Return the online CPUs, none if unknown. Source: Documentation/ABI/testing/sysfs-devices-system-cpu."""
    try:
        return parse_cpu_list(text_of(kernel, "/sys/devices/system/cpu/online"))
    except BadSpec:
        return ()


def read_processor(kernel: FileReader) -> Processor:
    """Return what /proc/cpuinfo reports; an x86_64 processor if it reports nothing."""
    text = text_of(kernel, "/proc/cpuinfo")
    bits, facts = _BITS.search(text), dict(_FACT.findall(text.partition("\n\n")[0]))
    vendor = facts.get("vendor_id", "")
    return Processor(
        arch=next((arch for arch, line in _ARCHITECTURES.items() if line.search(text)), "x86_64"),
        is_amd=vendor in ("AuthenticAMD", "HygonGenuine"),
        vendor=vendor,
        family=facts.get("cpu family", ""),
        model=facts.get("model", ""),
        address_bits=int(bits[1]) if bits else None,
    )


NODES = "/sys/devices/system/node"


def read_nodes(kernel: Reader) -> tuple[list[NumaNode], list[ProbeWarning]]:
    """Return all nodes by number, and warnings; no nodes on a kernel without NUMA."""
    nodes: list[NumaNode] = []
    warnings: list[ProbeWarning] = []
    ids = sorted(int(name[4:]) for name in names_in(kernel, NODES) if re.fullmatch(r"node[0-9]{1,4}", name, re.ASCII))
    for number in ids:
        node, problems = _node(kernel, number, ids)
        shared = {cpu for other in nodes for cpu in other.cpus}.intersection(node.cpus)
        if shared:
            problems.append(f"CPU {format_cpu_list(shared)} are also those of another node")
        nodes.append(node)
        warnings += [ProbeWarning(subject=f"NUMA node {number}", text=text) for text in problems]
    return nodes, warnings


def node_with(local_cpus: tuple[str, str], nodes: Sequence[NumaNode]) -> int | None:
    """Return which of several nodes has these CPUs and no others, as hwloc does. `local_cpus`: a list, else a mask."""
    cpu_list, cpu_mask = local_cpus
    try:
        cpus = set(parse_cpu_list(cpu_list) if cpu_list else parse_cpu_mask(cpu_mask))
    except BadSpec:
        return None
    alike = [node.id for node in nodes if cpus and cpus == set(node.cpus)]
    return alike[0] if len(alike) == 1 < len(nodes) else None


def _node(kernel: Reader, number: int, ids: list[int]) -> tuple[NumaNode, list[str]]:
    """Return a node and what is wrong with it. One whose CPUs are not known has none: it is a node all the same."""
    home, problems = f"{NODES}/node{number}", list[str]()
    try:
        cpus = _cpus(kernel, home)
    except (KernelRefused, BadSpec) as error:
        cpus = ()
        problems.append(f"its CPUs are not known: {error}")
    distances = _distances(kernel, home)
    if distances and len(distances) != len(ids):
        problems.append(f"{len(distances)} distances to {len(ids)} nodes: none of them is used")
        distances = []
    node = NumaNode(
        id=number,
        cpus=CpuSet(cpus),
        memory_bytes=_memory(kernel, home),
        distances=dict(zip(ids, distances, strict=False)),
    )
    return node, problems


def _cpus(kernel: Reader, home: str) -> tuple[int, ...]:
    """Return the CPUs of a node: from `cpumap` where there is no `cpulist`, as before Linux 2.6.26 and in captures."""
    if kernel.has(f"{home}/cpulist"):
        return parse_cpu_list(kernel.read(f"{home}/cpulist"))
    return parse_cpu_mask(kernel.read(f"{home}/cpumap"))


def _memory(kernel: Reader, home: str) -> int | None:
    match = re.search(r"MemTotal:\s+([0-9]+) kB", text_of(kernel, f"{home}/meminfo"))
    return int(match[1]) * 1024 if match else None


def _distances(kernel: Reader, home: str) -> list[int]:
    """Return the distances to all nodes, in the order of their numbers; none if they are not understood."""
    try:
        return [int(word) for word in kernel.read(f"{home}/distance").split()]
    except (KernelRefused, ValueError):
        return []
