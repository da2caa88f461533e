"""The error tree, by who must act. Imports nothing of vfioctl; does not print or exit.

::

    VfioctlError                 1   any other failure
    |- RequestError              2   amend the request
    |  |- BadAddress                 neither an address nor another device selector
    |  |- BadSpec                    an option or a configuration file is wrong
    |  |- BadDocument                a plan, a host file or a state is damaged, forged or of another version
    |  |- UnknownDevice              no such function here
    |  `- UnknownDomain              libvirt has no such domain
    |- HostError                 3   change the host
    |  |- NoIommu                    no IOMMU groups, and why
    |  |- GroupNotViable             the kernel says that a guest may not own the group
    |  |- DeviceDead                 the device no longer answers: its configuration space reads as all ones
    |  |- NotPermitted               this process may not write the files named
    |  |- MissingLibrary             an optional library is not installed
    |  `- StoreDamaged               the ledger is unreadable, unwritable or corrupt
    |- ConflictError             4   someone else has it
    |  |- DeviceInUse                a holder, a boot display, live VFs
    |  |- ClaimConflict              a claim of somebody else has it
    |  |- NoCapacity                 a card has no room for the vGPUs asked for
    |  |- Foreign                    vfioctl did not create the vGPU
    |  |- Busy                       another vfioctl process is changing this host
    |  |- StalePlan                  the facts that the plan relies on have changed
    |  |- Drift                      the ledger of claims and the machine differ
    |  `- Unfinished                 an earlier change was interrupted; `vfioctl recover`
    |- KernelRefused             5   the kernel refused a read or a write with an errno
    |- VerifyError               6   the host is not as it was to be; a change was rolled back
    |- Stuck                     7   the rollback failed, or a write never returned
    `- Cancelled                 1   the caller cancelled: the change was rolled back, or had not begun"""

from __future__ import annotations

import errno as errnos
import os
from collections.abc import Iterable, Mapping
from typing import ClassVar


def some_of(items: Iterable[object], most: int = 4) -> str:
    """Join the first items of a list for a message: `a, b, c, d and 12 more`."""
    words = [str(item) for item in items]
    rest = len(words) - most
    return ", ".join(words[:most]) + (f" and {rest} more" if rest > 0 else "")


class VfioctlError(Exception):
    """A failure that vfioctl can explain. Bugs are never wrapped in it.

    ``message`` says what failed and on what; ``hint`` what to do; ``next_command`` which command to
    run next; ``facts`` are details for ``--json``. ``kernel_said`` is the kernel's answer and
    ``restored`` what was restored; both may be empty."""

    exit_code: ClassVar[int] = 1

    def __init__(
        self, message: str, *, hint: str = "", next_command: str = "", facts: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.next_command = next_command
        self.facts = dict(facts or {})
        self.kernel_said = ""
        self.restored = ""


class Cancelled(VfioctlError):
    """The caller of the library cancelled the change: it was rolled back, or had not begun. Nobody must act: the exit
    code is that of an answer of no. A command that a signal ends has the signal's exit code instead."""


class RequestError(VfioctlError):
    exit_code = 2


class BadAddress(RequestError): ...


class BadSpec(RequestError): ...


class BadDocument(RequestError): ...


class UnknownDevice(RequestError): ...


class UnknownDomain(RequestError): ...


class HostError(VfioctlError):
    exit_code = 3


class NoIommu(HostError): ...


class GroupNotViable(HostError): ...


class DeviceDead(HostError): ...


class DeviceMissing(HostError):
    """A persistent device is not there, or cannot be told from others."""


class NotPermitted(HostError): ...


class MissingLibrary(HostError): ...


class StoreDamaged(HostError): ...


class StoreNewer(StoreDamaged):
    """A newer vfioctl wrote the ledger. It is sound, and this release cannot read it."""


class StoreForeign(StoreDamaged):
    """The ledger is another host's: a disk was copied, or this host's machine-id was changed."""


class StoreOlder(StoreDamaged):
    """A release before 0.2 wrote the ledger, which this release does not read."""


class ConflictError(VfioctlError):
    exit_code = 4


class DeviceInUse(ConflictError): ...


class ClaimConflict(ConflictError):
    """A claim of somebody else has the device, or another request has the key."""


class NoCapacity(ConflictError): ...


class Busy(ConflictError): ...


class Foreign(ConflictError): ...


class StalePlan(ConflictError): ...


class Drift(ConflictError):
    """`vfioctl reconcile` has found differences between the claims and the machine, and has named a remedy for each."""


class Unfinished(ConflictError): ...


# What an errno means for a given attribute. Sources: drivers/base/bus.c (bind, unbind),
# drivers/pci/pci-sysfs.c and driver core (driver_override), drivers/vfio/vfio_main.c (vfio group).
_HINTS: Mapping[tuple[str, int], str] = {
    ("unbind", errnos.ENODEV): "the device is no longer bound to that driver",
    ("bind", errnos.ENODEV): "that driver does not match the device: driver_override does not name it",
    ("bind", errnos.EBUSY): "another driver has the device, or it is a PF with live VFs",
    ("bind", errnos.EINVAL): "the driver refused it: it has no IOMMU group, or another driver owns the group",
    ("driver_override", errnos.EINVAL): "the kernel does not accept this driver name",
    ("drivers_probe", errnos.ENODEV): "the device has vanished from the PCI bus",
    ("create", errnos.EEXIST): "the UUID is in use, on this parent or another",
    ("create", errnos.ENODEV): "the parent's driver is being unbound",
    ("current_vgpu_type", errnos.EIO): "the type does not fit: the kernel log says more",
    ("current_vgpu_type", errnos.EBUSY): "a guest has it open, or it has another type",
    ("current_vgpu_type", errnos.EPERM): "a guest has it open",
    ("sriov_numvfs", errnos.EBUSY): "there are VFs already: set the count to 0 first",
    ("sriov_numvfs", errnos.ENOENT): "the PF's driver creates no VFs, or the PF has no driver",
    ("sriov_numvfs", errnos.ENOMEM): "too little address space for the VFs: enable above-4G decoding in the firmware",
    ("sriov_numvfs", errnos.ERANGE): "the device does not have that many VFs",
    ("drivers_probe", errnos.EINVAL): "a driver matched the device and refused it: the kernel log says why",
}
_GENERAL_HINTS: Mapping[int, str] = {
    errnos.EACCES: "run it as root",
    errnos.EPERM: "run it as root, outside a restricted container",
    errnos.EROFS: "the file system is mounted read-only, as in a container",
    errnos.ENOSPC: "the file system is full",
    errnos.ENOENT: "the device or the attribute does not exist, or no longer exists",
}


class KernelRefused(VfioctlError):
    """The kernel refused ``path`` with ``errno``. ``text``: what was written; None for a read."""

    exit_code = 5

    def __init__(self, path: str, errno: int, text: str | None = None) -> None:
        verb = "reading" if text is None else f"writing {text!r} to"
        self.path, self.errno, self.text = path, errno, text
        self.symbol = errnos.errorcode.get(errno, str(errno))
        hint = _HINTS.get((path.rsplit("/", 1)[-1], errno), _GENERAL_HINTS.get(errno, ""))
        super().__init__(f"{verb} {path} failed", hint=hint, facts={"path": path, "errno": self.symbol, "text": text})
        self.kernel_said = f"{self.symbol}: {os.strerror(errno)}"

    def __reduce__(self) -> tuple[type[KernelRefused], tuple[str, int, str | None]]:
        return type(self), (self.path, self.errno, self.text)


class VerifyError(VfioctlError):
    """Verification failed. ``facts`` has ``wanted`` and ``found``."""

    exit_code = 6


class Stuck(VfioctlError):
    """The rollback failed, or a write never returned; the journal entry stays open."""

    exit_code = 7
