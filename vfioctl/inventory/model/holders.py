"""Holders of devices: processes, guests, containers, and the kernel. May not do input or output."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from pydantic import Field

from vfioctl.core.change import Intent
from vfioctl.core.marks import Mark
from vfioctl.core.reservations import Reservation
from vfioctl.core.value import Value
from vfioctl.inventory.model.values import Subject


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


class Holder(Value):
    """One holder of one function or one mediated device."""

    address: Subject
    kind: HolderKind
    pid: int | None = None
    name: str = Field(description="the process's name, the mount point, the interface, ...")
    user: str | None = None
    unit: str | None = Field(default=None, description="systemd unit, as nvidia-persistenced.service")
    in_session: bool = Field(default=False, description="part of a login session, graphical or not")
    container: str | None = Field(default=None, description="as docker/0123456789ab, cri-containerd/..., lxc/NAME")
    pod: str | None = Field(default=None, description="the pod's uid")
    guest: str | None = Field(default=None, description="the virtual machine's name")
    path: str = Field(default="", description="the device file, or another path to the device")
    how: str = Field(
        default="",
        description="open, mapped, command line, mounted, up, ...; for an unread process, why it could not be read",
    )
    remedy: str = Field(default="", description="what makes it release the device")

    @property
    def refuses(self) -> bool:
        """Whether it blocks changes of the device."""
        return self.kind not in (HolderKind.CONSOLE, HolderKind.MODULE)

    @property
    def can_be_forced(self) -> bool:
        """Whether --force-holders overrides it; never true for disks and network interfaces in use."""
        return self.kind in (HolderKind.PROCESS, HolderKind.GUEST, HolderKind.VFIO_GROUP, HolderKind.UNREAD)


class Holders(Value):
    """The holders of some functions. Processes that could not be read may hold them too."""

    devices: tuple[Subject, ...]
    holders: tuple[Holder, ...] = ()
    read: int = Field(default=0, description="processes whose open files were read; 0 where none are recorded")
    unread: int = Field(default=0, description="processes whose open files could not be read")
    marks: tuple[Mark, ...] = Field(default=(), description="what the ledger says against these devices")
    reservations: tuple[Reservation, ...] = Field(default=(), description="for whom the ledger reserves these devices")
    hidden: str = Field(default="", description="why some processes may be hidden from vfioctl")
    unknown: str = Field(default="", description="why it is unknown whether processes hold them")

    @property
    def refusing(self) -> tuple[Holder, ...]:
        return tuple(holder for holder in self.holders if holder.refuses)


class MeetsHolders(Intent):
    """An intent whose steps or rollback need devices without holders."""

    ignores: ClassVar[frozenset[HolderKind]] = frozenset()
    """Kinds of holders that do not block this verb."""


class TakesDevices(MeetsHolders):
    """An intent that accepts --force-holders."""

    force_holders: bool = Field(default=False, description="continue although a process has the device open")
