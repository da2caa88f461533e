"""Holders of devices: processes, guests, containers, and the kernel. May not do input or output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum

from vfioctl.core.frozen import record_class
from vfioctl.core.marks import Mark
from vfioctl.core.reservations import Reservation
from vfioctl.inventory.model.values import PciAddress, Subject


class HolderKind(StrEnum):
    PROCESS = "process"
    GUEST = "guest"
    """A virtual machine, identified by its process."""
    DISK = "disk"
    """A block device that is mounted, used as swap, or part of md, device mapper, ZFS, ..."""
    NETWORK = "network"
    """A network interface that is up."""
    VFIO_GROUP = "vfio group"
    """An open VFIO group whose process could not be found."""
    UNREAD = "unread process"
    """A process that may have the device open: not all of its open files are known, although root asked."""
    MDEV = "mdev"
    VGPU = "vgpu"
    """A vGPU type of NVIDIA's vendor-specific VFIO, set on a VF."""
    VF = "vf"
    CONSOLE = "console"
    """A framebuffer with the text console. vfioctl detaches and restores it, so it does not block a change."""
    MODULE = "module"
    """Other users of the driver's module. Reported, but does not block a change."""


@record_class
class Holder:
    """One holder of one function or one mediated device."""

    address: Subject
    kind: HolderKind
    pid: int | None = None
    name: str
    """the process's name, the mount point, the interface, ..."""
    user: str | None = None
    unit: str | None = None
    """systemd unit, as nvidia-persistenced.service"""
    in_session: bool = False
    """part of a login session, graphical or not"""
    container: str | None = None
    """as docker/0123456789ab, cri-containerd/..., lxc/NAME"""
    pod: str | None = None
    """the pod's uid"""
    guest: str | None = None
    """the virtual machine's name"""
    path: str = ""
    """the device file, or another path to the device"""
    how: str = ""
    """open, mapped, command line, mounted, up, ...; for an unread process, why it could not be read"""
    remedy: str = ""
    """what makes it release the device"""

    @property
    def short(self) -> str:
        """Name and process, as `python 4711`."""
        return self.name if self.pid is None else f"{self.name} {self.pid}"

    @property
    def words(self) -> str:
        """It in words, such as `python (process 4711, alice, docker/0123): /dev/nvidia3 open`."""
        process = f"process {self.pid}" if self.pid is not None else ""
        guest = f"guest {self.guest}" if self.guest else ""
        who = ", ".join(filter(None, (process, self.user, guest or self.container or self.unit)))
        place = " ".join(filter(None, (self.path, self.how)))
        return f"{self.name}{f' ({who})' if who else ''}{f': {place}' if place else ''}"

    @property
    def refuses(self) -> bool:
        """Whether it blocks changes of the device."""
        return self.kind not in (HolderKind.CONSOLE, HolderKind.MODULE)

    @property
    def can_be_forced(self) -> bool:
        """Whether --force-holders overrides it; never true for disks and network interfaces in use."""
        return self.kind in (HolderKind.PROCESS, HolderKind.GUEST, HolderKind.VFIO_GROUP, HolderKind.UNREAD)


@record_class
class Holders:
    """The holders of some functions. Processes that could not be read may hold them too."""

    devices: tuple[Subject, ...]
    holders: tuple[Holder, ...] = ()
    read: int = 0
    """processes whose open files were read; 0 where none are recorded"""
    unread: int = 0
    """processes whose open files could not be read"""
    unread_functions: Mapping[PciAddress, str] = field(default_factory=dict)
    """functions of the same cards and groups that could not be read, and why: who holds them is unknown"""
    marks: tuple[Mark, ...] = ()
    """what the ledger says against these devices"""
    reservations: tuple[Reservation, ...] = ()
    """for whom the ledger reserves these devices"""
    hidden: str = ""
    """why some processes may be hidden from vfioctl"""
    unknown: str = ""
    """why it is unknown whether processes hold them"""

    @property
    def refusing(self) -> tuple[Holder, ...]:
        return tuple(holder for holder in self.holders if holder.refuses)
