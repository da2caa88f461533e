"""What the checks judge: the inventory and a few files of the host, read beforehand. May not do input or output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from vfioctl.doctor.model.result import Finding, unknown
from vfioctl.inventory.model.functions import Function, Inventory
from vfioctl.inventory.model.machine import Processor
from vfioctl.inventory.model.values import PciAddress
from vfioctl.persist.model.persistent import Persistent

if TYPE_CHECKING:
    from vfioctl.domain.model.libvirt import Libvirt
    from vfioctl.domain.model.planned import PlannedGuest


class FileText(NamedTuple):
    """A file as it was read. Both are empty for a file that does not exist."""

    path: str
    text: str | None = None
    refused: str = ""
    """The name of the errno, for a file that exists and could not be read."""

    @property
    def words(self) -> tuple[str, ...]:
        return tuple((self.text or "").split())

    @property
    def shown(self) -> str:
        """The path and the beginning of the value, for evidence."""
        return f"{self.path}: {(self.text or '').strip()[:60] or 'empty'}"

    def not_told(self) -> Finding:
        """Return the finding for a file that could not be read."""
        as_root = "run it as root" if self.refused in ("EACCES", "EPERM") else ""
        return unknown(f"{self.path}: {self.refused}", "It could not be told: the file cannot be read.", as_root)


class ModuleState(StrEnum):
    """Where a module of the running kernel is."""

    LOADED = "loaded"
    BUILT_IN = "built in"
    AVAILABLE = "not loaded, and available"
    MISSING = "missing"
    UNKNOWN = "unknown"
    """There is no list of modules of the running kernel."""


class Pages(NamedTuple):
    """The hugepages of one size on one NUMA node."""

    node: int
    size: int
    """in bytes"""
    total: int
    free: int


class LockLimit(NamedTuple):
    """How much memory the processes of a user may lock who may open the nodes of a claim."""

    claim: str
    user: str
    """The name of a user, or of a group with an @ before it; the number where there is no name."""
    limit: int | None
    """in bytes; None: any"""
    source: str
    """The file and line, or the default, that sets it."""
    memory: int | None = None
    """Bytes of the guest that is planned; None if they are not known."""
    unread: FileText | None = None
    """A file that may set another limit, and could not be read."""

    @property
    def domain(self) -> str:
        """The user or the group as limits.conf(5) names it: a number has a colon before it."""
        at, number = "@" if self.user.startswith("@") else "", self.user.removeprefix("@")
        return f"{at}:{number}" if number.isdecimal() else self.user


class CdiFile(NamedTuple):
    """A CDI file that is named like one of vfioctl's."""

    path: str
    problems: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    """The nodes that it names and that do not exist."""
    twins: tuple[str, ...] = ()
    """The files of others that define one of its names."""
    unread: FileText | None = None
    """If it could not be read: why."""


class KataLine(NamedTuple):
    """A line of the check of Kata's settings. `is_well`: None if it could not be checked."""

    name: str
    found: str
    remedy: str = ""
    is_well: bool | None = True


class Framebuffer(NamedTuple):
    """A platform device that a driver of firmware framebuffers has, such as efi-framebuffer.0."""

    driver: str
    device: str


@dataclass(frozen=True, kw_only=True)
class Facts:
    """One host at one moment. Facts of files that do not exist are empty."""

    inventory: Inventory
    devices: tuple[Function, ...]
    """the functions to judge: GPUs with their companions, or those that were asked for with theirs"""
    asked: bool = False
    """whether single functions were asked for"""
    processor: Processor = field(default_factory=lambda: Processor(arch="x86_64"))
    release: str = ""
    """of the running kernel"""
    command_line: FileText = field(default_factory=lambda: FileText("/proc/cmdline"))
    acpi_tables: tuple[str, ...] = ()
    irq_chips: tuple[str, ...] = ()
    """names of interrupt controllers, such as IR-PCI-MSI"""
    ecaps: tuple[FileText, ...] = ()
    """extended capabilities of VT-d units, in hexadecimal digits"""
    caps: tuple[FileText, ...] = ()
    """capabilities of VT-d units of a virtual machine, in hexadecimal digits"""
    vfio_pci: ModuleState = ModuleState.UNKNOWN
    unsafe_interrupts: FileText = field(
        default_factory=lambda: FileText("/sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts")
    )
    noiommu: FileText = field(
        default_factory=lambda: FileText("/sys/module/vfio/parameters/enable_unsafe_noiommu_mode")
    )
    dma_entries: FileText = field(
        default_factory=lambda: FileText("/sys/module/vfio_iommu_type1/parameters/dma_entry_limit")
    )
    reserved: Mapping[int, FileText] = field(default_factory=dict)
    """by IOMMU group of the functions to judge: the file of its reserved regions, where the kernel has it"""
    nodes: Mapping[str, int | None] = field(default_factory=dict)
    """the device nodes that exist, of /dev/vfio/vfio and /dev/iommu, with their permission bits if known"""
    node_groups: Mapping[str, str] = field(default_factory=dict)
    """the groups of these nodes, by name or number, other than root"""
    iommufd_claims: tuple[str, ...] = ()
    """the claims with a device that a user or a group may open through /dev/iommu"""
    has_dev: bool = True
    """whether the host has a /dev at all, which a captured directory may lack"""
    modprobe: tuple[FileText, ...] = ()
    """the files of modprobe.d that name vfio"""
    framebuffers: tuple[Framebuffer, ...] = ()
    unassigned: Mapping[PciAddress, tuple[int, ...]] = field(default_factory=dict)
    """numbers of the BARs of GPUs that have no address"""
    resizable: Mapping[PciAddress, Mapping[int, FileText]] = field(default_factory=dict)
    """by GPU and number of a BAR whose size can be changed: the sizes, as a bit map of MiB"""
    hugepages: tuple[Pages, ...] = ()
    buddyinfo: FileText = field(default_factory=lambda: FileText("/proc/buddyinfo"))
    isolated: FileText = field(default_factory=lambda: FileText("/sys/devices/system/cpu/isolated"))
    lockdown: FileText = field(default_factory=lambda: FileText("/sys/kernel/security/lockdown"))
    secure_boot: FileText = field(default_factory=lambda: FileText("/sys/firmware/efi/efivars/SecureBoot"))
    units: Mapping[str, str] = field(default_factory=dict)
    """states of systemd's units that were asked for; none without systemd"""
    unfinished: tuple[bool, ...] = ()
    """for each change that has begun and not ended: whether a process is still making it"""
    ledger_problem: str = ""
    """why the ledger cannot be read"""
    claims: int = 0
    differences: int = 0
    """between the ledger's claims and the machine"""
    compare_problem: str = ""
    """why the claims could not be compared, or not all of them"""
    persistent: tuple[Persistent, ...] = ()
    """what a boot restores, by whoever"""
    switched_off: str = ""
    """the file or kernel argument that keeps vfioctl from restoring anything"""
    not_installed: tuple[str, ...] = ()
    """the files for the boot that are missing, or of another release"""
    has_package: bool = False
    """whether a package of the system has installed what a boot needs"""
    outdated_initramfs: str = ""
    """which file the initramfs is older than, and the command that renews it"""
    persist_problem: str = ""
    """why what a boot restores is not known"""
    built_in: Mapping[PciAddress, tuple[str, ...]] = field(default_factory=dict)
    """by function that a boot should give to VFIO: the other drivers that fit it and are built into the kernel"""
    initramfs: tuple[FileText, ...] = ()
    """what the programs that make an initramfs are told to put into it"""
    in_initramfs: bool = False
    """whether vfioctl's own hook puts what is persistent into the initramfs"""
    guests: tuple[PlannedGuest, ...] = ()
    """the guests that domains and claims plan, as far as their memory is known"""
    lock_limits: tuple[LockLimit, ...] = ()
    """of the users that may open the nodes of claims"""
    labels_hidden: bool = False
    """whether there are claims, and who may open their nodes is not published to this user"""
    libvirt: Libvirt | None = None
    """None if there is none, or nothing that it could give to a guest"""
    cdi: tuple[CdiFile, ...] = ()
    cdi_problem: str = ""
    """why the CDI files are not known"""
    kata: tuple[KataLine, ...] = ()
    """none if Kata is not installed, or gets no device"""
    kata_problem: str = ""
    """why Kata's settings could not be checked"""
    udev_rules: tuple[FileText, ...] = ()
    """the installed files of vfioctl's rules, those that take precedence first"""
    packaged_rules: FileText = field(default_factory=lambda: FileText("60-vfioctl.rules"))
    has_udev: bool = False

    @cached_property
    def gpus(self) -> tuple[Function, ...]:
        """The GPUs to judge, VFs too."""
        return tuple(function for function in self.devices if function.is_gpu)

    @cached_property
    def cards(self) -> tuple[Function, ...]:
        """The GPUs to judge, without VFs."""
        return tuple(gpu for gpu in self.gpus if not gpu.is_vf)

    def stays(self, gpu: Function) -> bool:
        """Return whether a GPU is the host's boot display, as of a BMC, and nobody has asked for it."""
        return gpu.boot_vga and not gpu.on_vfio and not self.asked

    @cached_property
    def by_bus(self) -> Mapping[str, tuple[Function, ...]]:
        """The functions of each bus, such as 0000:41, without bridges and VFs."""
        buses: dict[str, list[Function]] = {}
        for function in self.inventory.functions:
            if not function.is_bridge and not function.is_vf:
                buses.setdefault(function.address.rpartition(":")[0], []).append(function)
        return {bus: tuple(functions) for bus, functions in buses.items()}

    @cached_property
    def by_model(self) -> Mapping[tuple[str, str], tuple[Function, ...]]:
        """The functions of each model, by the ids of vendor and device, without bridges."""
        models: dict[tuple[str, str], list[Function]] = {}
        for function in self.inventory.functions:
            if not function.is_bridge:
                models.setdefault((function.vendor_id, function.device_id), []).append(function)
        return {model: tuple(functions) for model, functions in models.items()}

    @property
    def vfio_is_loaded(self) -> bool:
        return self.vfio_pci is ModuleState.LOADED or any(function.on_vfio for function in self.devices)


def addresses_of(functions: Iterable[Function]) -> tuple[PciAddress, ...]:
    """Return the addresses of functions, as findings name devices."""
    return tuple(function.address for function in functions)
