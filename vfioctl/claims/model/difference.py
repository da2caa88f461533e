"""Differences between the ledger's claims and the machine, and what the machine shows. May not do input or output."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from vfioctl.inventory.model.functions import Function
    from vfioctl.placement.model.share import GpuShare


class DifferenceKind(StrEnum):
    """What differs."""

    EXPIRED = "expired"
    OWNER_GONE = "owner gone"
    PROCESS_GONE = "process gone"
    """The process that made or released the claim ended before it changed anything."""
    CUT_SHORT = "cut short"
    """A change for the claim was interrupted, or is under way."""
    REBOOTED = "rebooted"
    """The claim was made in an earlier boot, and its devices are as they were then, or can be."""
    DEVICE_GONE = "device gone"
    DEVICE_REPLACED = "device replaced"
    DRIVER = "driver"
    """A device that the claim bound to VFIO has another driver."""
    NOT_VIABLE = "group not viable"
    VGPU_GONE = "vGPU gone"
    OTHER_USER = "other user"
    """Another guest than the claim's owner has the device."""
    HOST_USE = "host use"
    """A process of somebody else uses a claimed GPU with its host driver."""
    CPUS = "CPUs offline"
    HUGEPAGES = "hugepages gone"
    FOREIGN_USE = "foreign use"
    CDI = "CDI file"
    KUBELET = "kubelet"
    """The kubelet and the ledger differ about which pod has a device."""
    ACCESS = "access"
    """Somebody may open a device node who may not, or may not who may."""


class Fix(StrEnum):
    """What `vfioctl reconcile --fix` does about a difference."""

    NOTHING = ""
    RELEASE = "release"
    END = "end"
    RESTORE = "restore"
    RENEW = "renew"
    """Write vfioctl's CDI files again, and set who may open device nodes."""


@dataclass(frozen=True)
class Difference:
    """One difference. `claim` and `owner` are empty if there is no claim, `device` if it is all of them."""

    kind: DifferenceKind
    words: str
    remedy: str
    """A command that removes the difference, or names who must."""
    claim: str = ""
    owner: str = ""
    device: str = ""
    fix: Fix = Fix.NOTHING


class Use(NamedTuple):
    """Somebody who has a device, or may open it."""

    device: str
    who: str
    """For the user: `guest web1 (process 4711)`."""
    guest: str = ""
    """The virtual machine's name, if it is one."""
    owner: str = ""
    """Who would own a claim of it."""
    is_domain: bool = False
    """Whether libvirt says so."""


class LostVgpu(NamedTuple):
    """A vGPU of a claim that does not exist."""

    words: str = ""
    """What it was, as the journal has it: its type and its parent."""
    why_not: str = ""
    """Why it cannot be created again as it was; empty if it can."""


@dataclass(frozen=True)
class Seen:
    """What the machine shows. Times are ISO 8601 in UTC."""

    now: str
    boot_id: str
    """Empty if it is not known."""
    functions: Mapping[str, Function]
    mdevs: Mapping[str, str]
    """The mediated devices that exist, each with its parent."""
    not_viable: frozenset[str] = frozenset()
    """The functions whose IOMMU groups are not viable."""
    lost: Mapping[str, LostVgpu] = field(default_factory=dict)
    """The vGPUs of claims that do not exist, by UUID or address."""
    definitions: frozenset[str] = frozenset()
    """The mediated devices that are defined and do not exist."""
    uses: tuple[Use, ...] = ()
    """Of devices that are ready for guests."""
    host_uses: tuple[Use, ...] = ()
    """Of claimed GPUs that are with their host drivers."""
    online: Collection[int] | None = None
    """The CPUs that are online; None if they are not known."""
    pages: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """The number of hugepages by node and size in bytes, of the nodes and sizes of claims, as far as it is known."""
    cdi: tuple[Difference, ...] = ()
    """Where vfioctl's CDI files differ from the claims."""
    stale: Mapping[str, tuple[DifferenceKind, str]] = field(default_factory=dict)
    """The claims that are stale, by id, and why."""
    changing: frozenset[str] = frozenset()
    """The claims for which a change was interrupted, or is under way."""
    unknown: tuple[str, ...] = ()
    """What could not be looked at, and why."""

    def is_of_this_boot(self, boot_id: str) -> bool:
        """Return whether this may be the boot with that id."""
        return self.boot_id in ("", boot_id)


@dataclass(frozen=True)
class Reconciled:
    """The result of a comparison."""

    differences: tuple[Difference, ...]
    unknown: tuple[str, ...]


def share_difference(share: GpuShare, gpu: Function | None) -> tuple[DifferenceKind, str] | None:
    """Return how a GPU differs from that of which a claim has a share, and the words for it; None if it does not."""
    if gpu is None:
        return DifferenceKind.DEVICE_GONE, "it no longer exists"
    if gpu.identity != share.identity:
        words = f"another device is at its address: {gpu.identity}, which was {share.identity}"
        return DifferenceKind.DEVICE_REPLACED, words
    if share.uuid and gpu.nvml and gpu.nvml.uuid and gpu.nvml.uuid != share.uuid:
        words = f"another GPU is at its address: {gpu.nvml.uuid}, which was {share.uuid}"
        return DifferenceKind.DEVICE_REPLACED, words
    if gpu.on_vfio or not gpu.driver:
        words = f"the claim has it with its host driver, and its driver is {gpu.driver or 'none'}"
        return DifferenceKind.DRIVER, words
    return None
