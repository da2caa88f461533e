"""Reads the IOMMU's state and groups from sysfs; the kernel command line only explains its state. May not write."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from vfioctl.inventory.model.functions import MANAGED_DMA_DRIVERS, Function
from vfioctl.inventory.model.machine import Blocker, Group, Iommu
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.lenient import link_name, names_in, text_of
from vfioctl.kernel.protocol import ACPI_TABLES, IOMMU_GROUPS, PCI_DEVICES, Reader

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
