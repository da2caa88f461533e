"""The error tree, by who must act. Imports nothing of vfioctl; says nothing, exits nowhere.

::

    VfioctlError                 1
    |- RequestError              2   amend the request
    |  |- BadAddress                 not an address, or not a device selector
    |  |- BadSpec                    an option or a document is wrong
    |  |- BadDocument                a plan or a host file is damaged, hostile or of another version
    |  `- UnknownDevice              no such function here
    |- HostError                 3   change the host
    |  |- NoIommu                    no IOMMU groups, and why
    |  |- GroupNotViable             the kernel says that a guest may not own the group
    |  |- DeviceDead                 it does not answer any more: its configuration space reads as all ones
    |  |- NotPermitted               files that could not be written, named
    |  `- StoreDamaged               the ledger is unreadable, unwritable or corrupt
    |- ConflictError             4   someone else has it
    |  |- DeviceInUse                a holder, a boot display, live VFs
    |  |- NoCapacity                 a card has no room for the vGPUs asked for
    |  |- Foreign                    vfioctl did not make the vGPU
    |  |- Busy                       another vfioctl works on this host
    |  |- StalePlan                  the facts that the plan relies on have changed
    |  `- Unfinished                 an earlier change was cut short; `vfioctl recover`
    |- KernelRefused             5   a read or a write that the kernel answered with an errno
    |- VerifyError               6   probed again, and not what was wanted; the host was put back
    `- Stuck                     7   could not go back, or a write never returned
"""

from __future__ import annotations

import errno as errnos
import os
from collections.abc import Mapping
from typing import ClassVar


class VfioctlError(Exception):
    """Anything that vfioctl can explain. Bugs are never wrapped in it.

    ``message`` says what failed and on what; ``hint`` what to do; ``next_command`` the command to
    run next; ``facts`` are details for ``--json``; ``kernel_said`` is the kernel's own answer and
    ``restored`` what was put back, both empty when there is nothing to say.
    """

    exit_code: ClassVar[int] = 1

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        next_command: str = "",
        facts: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.next_command = next_command
        self.facts = dict(facts or {})
        self.kernel_said = ""
        self.restored = ""


class RequestError(VfioctlError):
    exit_code = 2


class BadAddress(RequestError):
    pass


class BadSpec(RequestError):
    pass


class BadDocument(RequestError):
    pass


class UnknownDevice(RequestError):
    pass


class HostError(VfioctlError):
    exit_code = 3


class NoIommu(HostError):
    pass


class GroupNotViable(HostError):
    pass


class DeviceDead(HostError):
    pass


class NotPermitted(HostError):
    pass


class StoreDamaged(HostError):
    pass


class ConflictError(VfioctlError):
    exit_code = 4


class DeviceInUse(ConflictError):
    pass


class NoCapacity(ConflictError):
    pass


class Busy(ConflictError):
    pass


class Foreign(ConflictError):
    pass


class StalePlan(ConflictError):
    pass


class Unfinished(ConflictError):
    pass


# What the kernel means by an errno on a given attribute. Sources: drivers/base/bus.c (bind, unbind),
# drivers/pci/pci-sysfs.c and driver core (driver_override), drivers/vfio/vfio_main.c (vfio group).
_HINTS: Mapping[tuple[str, int], str] = {
    ("unbind", errnos.ENODEV): "the device is not bound to that driver (any more): look again",
    ("bind", errnos.ENODEV): "that driver does not match the device: driver_override is not set to it",
    ("bind", errnos.EBUSY): "another driver has the device, or it is a PF with live VFs",
    ("bind", errnos.EINVAL): "the driver refused it: no IOMMU group, or its owner is another driver",
    ("driver_override", errnos.EINVAL): "the kernel takes no such driver name",
    ("drivers_probe", errnos.ENODEV): "the device has vanished from the PCI bus",
    ("create", errnos.EEXIST): "that UUID is taken, on this parent or another",
    ("create", errnos.ENODEV): "the parent's driver is about to leave it",
    ("current_vgpu_type", errnos.EIO): "the driver has no room for that type: the kernel log says more",
    ("current_vgpu_type", errnos.EBUSY): "a guest has it, or it has another type",
    ("current_vgpu_type", errnos.EPERM): "a guest has it",
    ("sriov_numvfs", errnos.EBUSY): "there are VFs already: another count goes by way of 0",
    ("sriov_numvfs", errnos.ENOENT): "the PF's driver makes no VFs, or it has no driver",
    ("sriov_numvfs", errnos.ENOMEM): "too little address space for the VFs: look for above-4G decoding in the firmware",
    ("sriov_numvfs", errnos.ERANGE): "the device has not that many VFs",
    ("drivers_probe", errnos.EINVAL): "a driver matched the device and refused it: the kernel log says why",
}
_GENERAL_HINTS: Mapping[int, str] = {
    errnos.EACCES: "run it as root",
    errnos.EPERM: "run it as root, outside a restricted container",
    errnos.EROFS: "the file system is mounted read-only, as in a container",
    errnos.ENOSPC: "the file system is full",
    errnos.ENOENT: "the device or the attribute is not there (any more)",
}


class KernelRefused(VfioctlError):
    """A file of the kernel answered with an errno.

    ``path`` is the file, ``errno`` the number, ``text`` what was written (None for a read).
    """

    exit_code = 5

    def __init__(self, path: str, errno: int, text: str | None = None) -> None:
        verb = "reading" if text is None else f"writing {text!r} to"
        self.path, self.errno, self.text = path, errno, text
        self.symbol = errnos.errorcode.get(errno, str(errno))
        hint = _HINTS.get((path.rsplit("/", 1)[-1], errno), _GENERAL_HINTS.get(errno, ""))
        super().__init__(
            f"{verb} {path} failed",
            hint=hint,
            facts={"path": path, "errno": self.symbol, "text": text},
        )
        self.kernel_said = f"{self.symbol}: {os.strerror(errno)}"

    def __reduce__(self) -> tuple[type[KernelRefused], tuple[str, int, str | None]]:
        return type(self), (self.path, self.errno, self.text)


class VerifyError(VfioctlError):
    """Probed again, and not what was wanted. ``facts`` has ``wanted`` and ``found``."""

    exit_code = 6


class Stuck(VfioctlError):
    """The host could not be put back, or a write never returned; the journal stays open."""

    exit_code = 7
