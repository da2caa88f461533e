"""Reads what is around the functions: the IOMMU and its groups, NUMA nodes, the processor. May not write. The kernel
command line only explains the IOMMU's state. Sources: arch/x86/kernel/cpu/proc.c and arch/arm64/kernel/cpuinfo.c;
Documentation/ABI/stable/sysfs-devices-node."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from vfioctl.errors import BadSpec, KernelRefused
from vfioctl.inventory.model.functions import MANAGED_DMA_DRIVERS, Function, ProbeWarning
from vfioctl.inventory.model.machine import Blocker, Group, Iommu, NumaNode, Processor
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.lenient import link_name, names_in, text_of
from vfioctl.kernel.protocol import ACPI_TABLES, IOMMU_GROUPS, PCI_DEVICES, FileReader, Reader
from vfioctl.units import CpuSet, format_cpu_list, parse_cpu_list, parse_cpu_mask

CLASS_IOMMU = "/sys/class/iommu"
_KINDS = {"dmar": "intel-vt-d", "ivhd": "amd-vi", "smmu3": "arm-smmu-v3", "smmu": "arm-smmu"}
_TABLES = {"DMAR": "VT-d", "IVRS": "AMD-Vi", "IORT": "SMMU", "VIOT": "a virtio IOMMU"}

_IN_EVERY_FIRMWARE = "FACP"
"""A table that all ACPI firmware has (ACPI 6.5, 5.2.9): where it is not listed, other tables may be missing as well."""

_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)
_UNKNOWN = "unknown why: the kernel has created no IOMMU groups"
"""On machines that are not x86, or without ACPI, and for captures without these files."""
_OFF = {"intel_iommu=off", "amd_iommu=off", "iommu=off", "iommu=soft"}


def read_iommu(kernel: Reader, functions: Iterable[Function]) -> Iommu:
    """Return the IOMMU's kind and state; it translates if the kernel has created groups, which functions name too."""
    units = names_in(kernel, CLASS_IOMMU)
    kind = next((name for unit in units for prefix, name in _KINDS.items() if unit.startswith(prefix)), None)
    if any(function.iommu_group is not None for function in functions) or names_in(kernel, IOMMU_GROUPS):
        return Iommu(kind=kind or (units[0] if units else None), translating=True)
    return Iommu(kind=kind, translating=False, reason=_why_not(kernel))


def _why_not(kernel: Reader) -> str:
    command_line = set(text_of(kernel, "/proc/cmdline").split())
    off = sorted(command_line & _OFF)
    tables = names_in(kernel, ACPI_TABLES)
    table = next((name for name in _TABLES if name in tables), None)
    flags = text_of(kernel, "/proc/cpuinfo")
    if off:
        return f"switched off on the kernel command line ({' '.join(off)})"
    if table == "DMAR":
        return "not switched on: add intel_iommu=on to the kernel command line"
    if table:
        return f"the firmware offers {_TABLES[table]} and the kernel does not use it: dmesg | grep -i iommu"
    complete = _IN_EVERY_FIRMWARE in tables
    if complete and re.search(r"\b(vmx|svm)\b", flags):
        return "switched off in the firmware: enable VT-d or AMD-Vi (IOMMU) in the BIOS set-up"
    if complete and re.search(r"^flags\s*:", flags, re.MULTILINE):
        return "not supported: the firmware names no IOMMU, and the processor has no virtualisation"
    return _UNKNOWN


def read_members(kernel: Reader) -> dict[str, int]:
    """Return the group of each device that the kernel lists in one."""
    return {
        address: int(group)
        for group in names_in(kernel, IOMMU_GROUPS)
        if _NUMBER.fullmatch(group)
        for address in names_in(kernel, f"{IOMMU_GROUPS}/{group}/devices")
    }


def group_of(kernel: Reader, address: str) -> int | None:
    """Return the group that a function's link names."""
    group = link_name(kernel, f"{PCI_DEVICES}/{address}/iommu_group")
    return int(group) if _NUMBER.fullmatch(group) else None


def read_groups(
    kernel: Reader,
    functions: Iterable[Function],
    types: Mapping[int | None, str | None],
    unread: Mapping[PciAddress, int | None],
) -> tuple[Group, ...]:
    """Return every IOMMU group of the functions, with all its members. `unread`: the groups of unread functions."""
    members: dict[int, list[Function]] = {}
    for function in functions:
        if function.iommu_group is not None:
            members.setdefault(function.iommu_group, []).append(function)
    nodes = frozenset(names_in(kernel, "/dev/vfio"))
    missing: dict[int, list[PciAddress]] = {}
    for address, group in unread.items():
        if group is not None:
            missing.setdefault(group, []).append(address)
    return tuple(
        _group(number, types.get(number), members.get(number, []), missing.get(number, []), nodes)
        for number in sorted(members.keys() | missing.keys())
    )


def _group(
    number: int, kind: str | None, members: list[Function], unread: list[PciAddress], nodes: frozenset[str]
) -> Group:
    blockers = tuple(
        [  # lists: a host has thousands of groups, and a generator takes longer
            Blocker(address=member.address, driver=member.driver)
            for member in members
            if member.driver and member.driver not in MANAGED_DMA_DRIVERS and not member.serves_guests
        ]
    )
    return Group(
        id=number,
        type=kind,
        members=tuple([member.address for member in members]),
        unread=tuple(unread),
        viable=None if unread and not blockers else not blockers,
        blockers=blockers,
        node=f"/dev/vfio/{number}" if str(number) in nodes else None,
    )


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
_FLAGS = re.compile(r"^flags\s*:(.*)$", re.MULTILINE)
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
    flags = match[1].split() if (match := _FLAGS.search(text)) else None
    bits, facts = _BITS.search(text), dict(_FACT.findall(text.partition("\n\n")[0]))
    vendor = facts.get("vendor_id", "")
    return Processor(
        arch=next((arch for arch, line in _ARCHITECTURES.items() if line.search(text)), "x86_64"),
        is_amd=vendor in ("AuthenticAMD", "HygonGenuine"),
        vendor=vendor,
        family=facts.get("cpu family", ""),
        model=facts.get("model", ""),
        address_bits=int(bits[1]) if bits else None,
        is_guest=None if flags is None else "hypervisor" in flags,
        has_kvm=None if flags is None else not {"vmx", "svm"}.isdisjoint(flags),
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
