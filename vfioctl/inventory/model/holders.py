"""Who uses a device: processes, guests, containers, and the kernel itself. May not do input or output."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from vfioctl.inventory.model.functions import Mark
from vfioctl.inventory.model.values import Subject, Value


class HolderKind(StrEnum):
    PROCESS = "process"
    GUEST = "guest"
    """A virtual machine, known by its process."""
    DISK = "disk"
    """A block device that is mounted, swapped to, or a part of md, device mapper, ZFS, ..."""
    NETWORK = "network"
    """A network interface that is up."""
    VFIO_GROUP = "vfio group"
    """The kernel says that the group is open; no process could be found that has it."""
    MDEV = "mdev"
    VGPU = "vgpu"
    """A type of NVIDIA's vendor-specific VFIO that the VF has."""
    VF = "vf"
    CONSOLE = "console"
    """A framebuffer with the text console on it; released and put back, so it refuses nothing."""
    MODULE = "module"
    """The driver's module is used by others; said, and refuses nothing."""


class Holder(Value):
    """One user of one function, or of one mediated device."""

    address: Subject
    kind: HolderKind
    pid: int | None = None
    name: str = Field(description="the process's name, the mount point, the interface, ...")
    user: str | None = None
    unit: str | None = Field(default=None, description="systemd unit, as nvidia-persistenced.service")
    in_session: bool = Field(default=False, description="part of somebody's login, graphical or not")
    container: str | None = Field(default=None, description="as docker/0123456789ab, cri-containerd/..., lxc/NAME")
    pod: str | None = Field(default=None, description="the pod's uid")
    guest: str | None = Field(default=None, description="the virtual machine's name")
    path: str = Field(default="", description="the device file, or what else leads to the device")
    how: str = Field(default="", description="open, mapped, command line, mounted, up, ...")
    remedy: str = Field(default="", description="what makes it let go")

    @property
    def refuses(self) -> bool:
        """Whether the device cannot be taken from it."""
        return self.kind not in (HolderKind.CONSOLE, HolderKind.MODULE)

    @property
    def can_be_forced(self) -> bool:
        """Whether --force-holders goes on all the same; it never takes a disk in use or the network."""
        return self.kind in (HolderKind.PROCESS, HolderKind.GUEST, HolderKind.VFIO_GROUP)


class Holders(Value):
    """What a look at some functions found. Processes that could not be read may hold them too."""

    devices: tuple[Subject, ...]
    holders: tuple[Holder, ...] = ()
    read: int = Field(default=0, description="processes whose open files were read; 0 where none are recorded")
    unread: int = Field(default=0, description="processes whose open files could not be read")
    marks: tuple[Mark, ...] = Field(default=(), description="what the ledger says against these devices")
    hidden: str = Field(default="", description="why there may be processes that nobody here can see")

    @property
    def refusing(self) -> tuple[Holder, ...]:
        return tuple(holder for holder in self.holders if holder.refuses)
