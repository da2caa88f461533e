"""What a machine has around its functions: groups, cards, NUMA nodes, the IOMMU, the processor. May not do I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from vfioctl.core.frozen import record_class
from vfioctl.inventory.model.values import PciAddress
from vfioctl.units import CpuSet


@record_class
class Blocker:
    """A group member whose driver makes the group not viable for a guest."""

    address: PciAddress
    driver: str


@record_class
class Group:
    """An IOMMU group: the unit that the kernel lets a guest own."""

    id: int
    type: str | None = None
    """DMA, DMA-FQ, identity, ... as the kernel says"""
    members: tuple[PciAddress, ...]
    unread: tuple[PciAddress, ...] = ()
    """members that could not be read"""
    viable: bool | None
    """None when a member could not be read"""
    blockers: tuple[Blocker, ...] = ()
    """members on a driver that does its own DMA"""
    node: str | None = None
    """/dev/vfio/N while it exists"""


@record_class
class Card:
    """The physical functions of one domain:bus:device, and those tied to it by device links."""

    slot: str
    functions: tuple[PciAddress, ...]
    unread: tuple[PciAddress, ...] = ()
    """functions of it, or of its groups, that could not be read"""
    groups: tuple[int, ...]


@record_class
class NumaNode:
    """A NUMA node. Memory in bytes; distances as the firmware's SLIT gives them, by node id."""

    id: int
    cpus: CpuSet
    memory_bytes: int | None
    distances: Mapping[int, int] = field(default_factory=dict)


@record_class
class Iommu:
    """Whether the IOMMU translates the devices' DMA, from sysfs; `reason` explains why it does not."""

    kind: str | None = None
    """intel-vt-d, amd-vi, arm-smmu-v3, ... or None"""
    translating: bool
    reason: str = ""


@record_class
class Processor:
    """The processor, as /proc/cpuinfo reports it."""

    arch: str
    """As libvirt and QEMU name it: x86_64, aarch64; ppc64le also for ppc64."""
    is_amd: bool = False
    vendor: str = ""
    """As cpuinfo names it: GenuineIntel, AuthenticAMD; empty if it does not."""
    family: str = ""
    model: str = ""
    address_bits: int | None = None
    """The width of physical addresses; None if it is not known."""
    is_guest: bool | None = None
    """Whether it is that of a virtual machine: x86 reports it as the flag `hypervisor`. None if that is not known."""
    has_kvm: bool | None = None
    """Whether KVM can run guests on it: the flags `vmx` and `svm` of x86. None if that is not known."""

    @property
    def is_x86(self) -> bool:
        return self.arch == "x86_64"
