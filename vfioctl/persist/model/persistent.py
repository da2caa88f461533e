"""What is persistent on a host, who has defined it, and whether it is there now. May not do input or output."""

from __future__ import annotations

from enum import StrEnum

from vfioctl.core.frozen import record_class


class Owner(StrEnum):
    """Who has defined something, and acts at boot."""

    VFIOCTL = "vfioctl"
    DRIVERCTL = "driverctl"
    MDEVCTL = "mdevctl"
    COMMAND_LINE = "kernel command line"
    MODPROBE = "modprobe.d"


class State(StrEnum):
    """Whether the host is now as a boot would leave it."""

    READY = "ready"
    """It is there."""
    MOVED = "moved"
    """It is there, at another address than the definition has."""
    ABSENT = "not restored"
    """It can be restored: `vfioctl persist restore`."""
    FAILED = "cannot be restored"
    """Missing, ambiguous or damaged; `why` says it."""
    FOREIGN = "not checked"
    """Another program restores it."""


@record_class
class Persistent:
    """One thing that a boot restores."""

    name: str
    """The device or vGPU: an address or a UUID; ids for a rule about all devices of a model."""
    goal: str
    """What it will be, such as `vfio-pci`, `4 VFs` or a vGPU type."""
    owner: Owner
    state: State
    file: str
    """The file that defines it."""
    now: str = ""
    """The present address, if it is not `name`."""
    why: str = ""
    """What is different or wrong; empty if nothing is."""

    @property
    def is_well(self) -> bool:
        return self.state in (State.READY, State.FOREIGN)


@record_class
class Switch:
    """What turns everything off at boot, if anything does."""

    why: str = ""
    """The file or the kernel argument; empty if restoring is on."""
