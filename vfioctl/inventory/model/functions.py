"""The devices of a host: its functions, and the look-ups between them, their groups and cards. May not do I/O. Facts
that could not be read are None, and `unknown` says why. These are plain dataclasses, because a listing takes less time
than importing pydantic and building its models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile

from vfioctl.core.frozen import record_class
from vfioctl.core.marks import Mark
from vfioctl.core.reservations import Reservation, whole_devices
from vfioctl.inventory.model.machine import Card, Group, Iommu, NumaNode
from vfioctl.inventory.model.values import PciAddress, is_gpu_class
from vfioctl.units import Uuid

MANAGED_DMA_DRIVERS = frozenset({"vfio-pci", "pcieport", "pci-stub"})
"""Drivers, besides VFIO variants, that keep a group viable for a guest (`driver_managed_dma`, Linux 5.19)."""


@record_class
class Bar:
    """One base address region. Source: the `resource` attribute, flags in linux/ioport.h."""

    index: int
    """0 to 5; 6 is the expansion ROM"""
    size: int
    """bytes"""
    kind: str
    """io, mem32 or mem64"""
    prefetchable: bool


@record_class
class Link:
    """The PCIe link. Speeds in GT/s, widths in lanes."""

    speed: float | None
    width: int | None
    max_speed: float | None
    max_width: int | None


@record_class
class Nvml:
    """Facts about a GPU that the NVIDIA driver reports through NVML."""

    name: str | None = None
    uuid: str | None = None
    memory_bytes: int | None = None
    persistence_mode: bool | None = None
    compute_mode: str | None = None
    mig_mode: bool | None = None


@record_class
class Function:
    """One PCI function. Ids are four lower-case hexadecimal digits."""

    address: PciAddress
    vendor_id: str
    device_id: str
    subsystem_vendor_id: str
    subsystem_device_id: str
    vendor_name: str | None = None
    device_name: str | None = None
    subsystem_name: str | None = None
    class_code: str = field(metadata={"alias": "class"})
    """six hexadecimal digits: class, subclass, interface"""
    class_name: str | None = None
    driver: str | None = None
    driver_override: str | None = None
    available_drivers: tuple[str, ...] = ()
    """from modules.alias, the VFIO variants last"""
    iommu_group: int | None = None
    numa_node: int | None = None
    """None when the firmware did not say (-1)"""
    bars: tuple[Bar, ...] = ()
    prefetchable_64: int = 0
    """bytes of 64-bit prefetchable space in all BARs"""
    link: Link | None = None
    power_state: str | None = None
    d3cold_allowed: bool | None = None
    reset_methods: tuple[str, ...] = ()
    reset_unnamed: bool = False
    """a kernel before 5.15 names no methods"""
    boot_vga: bool = False
    physfn: PciAddress | None = None
    """the PF, for a VF"""
    virtfns: tuple[PciAddress, ...] = ()
    """the live VFs, for a PF"""
    sriov_totalvfs: int | None = None
    mdevs: tuple[Uuid, ...] = ()
    """the mediated devices on it"""
    vgpu_type: str | None = None
    """for a VF with NVIDIA's vendor-specific VFIO: its vGPU type, if any"""
    suppliers: tuple[PciAddress, ...] = ()
    """device links: functions that this one needs"""
    consumers: tuple[PciAddress, ...] = ()
    """device links: functions that need this one"""
    upstream: PciAddress | None = None
    """the bridge above"""
    vfio_group: str | None = None
    """/dev/vfio/N while it exists"""
    vfio_cdev: str | None = None
    """/dev/vfio/devices/vfioN while it exists"""
    nvml: Nvml | None = None
    companions: tuple[PciAddress, ...] = ()
    mark: Mark | None = None
    """wedged or dead, as the ledger has it"""
    claim: str | None = None
    """the id of the claim that has the whole function, as the ledger has it"""
    owner: str | None = None
    """the owner of that claim"""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """facts that could not be read, and why"""

    @property
    def is_gpu(self) -> bool:
        return is_gpu_class(self.class_code)

    @property
    def is_bridge(self) -> bool:
        """Whether it is a bridge, which stays with the host. Class 0680 is not: NVSwitches use it."""
        return self.class_code.startswith("06") and not self.class_code.startswith("0680")

    @property
    def is_vf(self) -> bool:
        return self.physfn is not None

    @property
    def vgpus(self) -> int:
        """The number of vGPUs on it; those of its VFs are theirs."""
        return len(self.mdevs) + (self.vgpu_type is not None)

    @property
    def on_vfio(self) -> bool:
        return self.driver is not None and is_vfio_driver(self.driver)

    @property
    def serves_guests(self) -> bool:
        """Whether its driver gives it to guests: a VFIO driver does, and NVIDIA's does with a VF that is a vGPU."""
        return self.on_vfio or self.vgpu_type is not None

    @property
    def lacks_vgpu(self) -> bool:
        """Whether it is a VF of NVIDIA's driver that is no vGPU: of no use to a guest, neither here nor on VFIO."""
        known = "current_vgpu_type" not in self.unknown
        return self.is_vf and self.driver == "nvidia" and self.vgpu_type is None and known

    @property
    def identity(self) -> str:
        """The device's ids and class, which do not depend on its slot."""
        subsystem = f"{self.subsystem_vendor_id}:{self.subsystem_device_id}"
        return f"{self.vendor_id}:{self.device_id}:{subsystem}:{self.class_code}"

    @property
    def title(self) -> str:
        """The best known short name."""
        if self.nvml and self.nvml.name:
            return self.nvml.name
        return self.device_name or f"{self.vendor_id}:{self.device_id}"


def is_vfio_driver(name: str) -> bool:
    """Return whether a driver is vfio-pci or a VFIO variant such as nvgrace_gpu_vfio_pci."""
    return name.replace("_", "-").endswith("vfio-pci")


@record_class
class ProbeWarning:
    """A fact that could not be read, and why."""

    subject: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """A host's devices at one moment. Functions are in address order."""

    functions: tuple[Function, ...]
    groups: tuple[Group, ...]
    numa_nodes: tuple[NumaNode, ...]
    iommu: Iommu
    drivers: tuple[str, ...] = ()
    """PCI drivers that are registered now"""
    warnings: tuple[ProbeWarning, ...] = ()
    unread: Mapping[PciAddress, str] = field(default_factory=dict)
    """functions that could not be read, and why; in address order"""
    reservations: tuple[Reservation, ...] = ()
    """devices that the ledger reserves for somebody"""

    @cached_property
    def by_address(self) -> Mapping[PciAddress, Function]:
        return {function.address: function for function in self.functions}

    @cached_property
    def reserved(self) -> Mapping[str, Reservation]:
        """What is reserved as a whole, by address or UUID."""
        return whole_devices(self.reservations)

    @cached_property
    def gpus(self) -> tuple[Function, ...]:
        return tuple(function for function in self.functions if function.is_gpu)

    @cached_property
    def ordered_gpus(self) -> tuple[Function, ...]:
        """The GPUs in the order of their names `gpu0`, `gpu1`, ...; VFs follow."""
        return tuple(sorted(self.gpus, key=lambda gpu: (gpu.is_vf, gpu.boot_vga)))

    @cached_property
    def numbered_gpus(self) -> Mapping[str, PciAddress]:
        """`gpu0`, `gpu1`, ... in address order, the boot display last. VFs have no number, nor have GPUs after a
        function that could not be read: it may be a GPU."""
        physical = (gpu for gpu in self.ordered_gpus if not gpu.is_vf)
        certain = takewhile(lambda gpu: not self._doubts(gpu), physical)
        return {f"gpu{number}": gpu.address for number, gpu in enumerate(certain)}

    def _doubts(self, gpu: Function) -> bool:
        """Return whether an unread function may be a GPU that comes before this one."""
        return any(gpu.boot_vga or address.order < gpu.address.order for address in self.unread)

    @cached_property
    def gpu_names(self) -> Mapping[PciAddress, str]:
        """The names `gpu0`, `gpu1`, ... by address."""
        return {address: name for name, address in self.numbered_gpus.items()}

    @cached_property
    def group_by_id(self) -> Mapping[int, Group]:
        return {group.id: group for group in self.groups}

    def group_of(self, function: Function) -> Group | None:
        return self.group_by_id.get(-1 if function.iommu_group is None else function.iommu_group)

    @cached_property
    def _cards(self) -> Mapping[PciAddress, tuple[PciAddress, ...]]:
        return card_members(self.functions)

    def card_of(self, address: PciAddress) -> tuple[PciAddress, ...]:
        """Return all functions of the card, including this one, in address order. A VF is its own card."""
        return self._cards.get(address, (address,))

    @cached_property
    def cards(self) -> tuple[Card, ...]:
        """The cards that have a GPU."""
        members = {self.card_of(gpu.address) for gpu in self.gpus if not gpu.is_vf}
        return tuple(
            Card(
                slot=functions[0].slot,
                functions=functions,
                unread=tuple({a: None for f in functions for a in self.unread_beside(self.by_address[f])}),
                groups=tuple(sorted(self.group_by_id.keys() & {self.by_address[f].iommu_group for f in functions})),
            )
            for functions in sorted(members, key=lambda m: m[0].order)
        )

    def unread_beside(self, function: Function) -> tuple[PciAddress, ...]:
        """Return the functions of its group, and of its card unless it is a VF, that could not be read."""
        if not self.unread:
            return ()
        group = self.group_of(function)
        members = group.unread if group else ()
        slots = set() if function.is_vf else {address.slot for address in self.card_of(function.address)}
        return tuple(a for a in self.unread if a in members or (a.slot in slots and a not in self._virtual))

    @cached_property
    def _virtual(self) -> frozenset[PciAddress]:
        return frozenset(vf for function in self.functions for vf in function.virtfns)

    def members_of(self, group: int | None) -> tuple[PciAddress, ...]:
        known = self.group_by_id.get(group) if group is not None else None
        return known.members if known else ()

    def is_ready(self, function: Function) -> bool:
        """Return whether a guest can have the function now."""
        group = self.group_of(function)
        viable = group is not None and group.viable is True and not self.unread_beside(function)
        return function.serves_guests and function.mark is None and viable


def card_members(functions: Iterable[Function]) -> Mapping[PciAddress, tuple[PciAddress, ...]]:
    """Return the card of each function on a shared card: same slot, or tied by a device link. VFs are excluded."""
    physical = {f.address: f for f in functions if not f.is_vf and not f.is_bridge}
    slots: dict[str, set[PciAddress]] = {}
    for address in physical:
        slots.setdefault(address.slot, set()).add(address)
    for address, function in physical.items():
        for other in (*function.suppliers, *function.consumers):
            if other in physical and slots[other.slot] is not slots[address.slot]:
                joined = slots[address.slot] | slots[other.slot]
                slots.update({member.slot: joined for member in joined})
    cards = {id(members): tuple(sorted(members, key=lambda a: a.order)) for members in slots.values()}
    return {address: cards[id(slots[address.slot])] for address in physical if len(slots[address.slot]) > 1}
