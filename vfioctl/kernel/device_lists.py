"""What the processes of a cgroup may open: this part of the kernel protocol, and its values. May not read or write a
host."""

from __future__ import annotations

import errno as errnos
import re
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from vfioctl.errors import HostError, KernelRefused

CGROUPS = "/sys/fs/cgroup"
"""Where cgroup version 2 is mounted."""
UNIT = re.compile(
    r"[A-Za-z0-9_:.@-](?:[A-Za-z0-9_:.@-]|\\x[0-9a-f]{2})*\.(?:service|scope|slice|socket|mount|swap)", re.ASCII
)
"""Names of the units that have a cgroup."""
LONGEST_UNIT = 255
_NO_CGROUPS = "this host has no cgroups that vfioctl knows of"


class DeviceProgram(NamedTuple):
    """A program that is attached to a cgroup and decides which device nodes its processes may open."""

    id: int
    name: str
    """As whoever loaded it named it."""
    uid: int
    """The user who loaded it."""
    refused: tuple[str, ...] | None = None
    """For a program as vfioctl makes it: the numbers it refuses, such as `c 195:0`. None for any other."""


class UnitDevices(NamedTuple):
    """What systemd lets the processes of a unit open, as `systemctl show` has it."""

    unit: str
    policy: str
    """DevicePolicy: auto, closed or strict."""
    allowed: tuple[str, ...]
    """DeviceAllow: `/dev/null rw`, `char-pts rwm`."""
    later: tuple[str, ...] = ()
    """Drop-in files that set these too, and that systemd reads after those of `set-property`."""


class DeviceLists(Protocol):
    """Reads what cgroups may open. `cgroup`: its path below the mount, such as `/system.slice/a.service`."""

    def device_programs(self, cgroup: str) -> Sequence[DeviceProgram]:
        """The programs attached to the cgroup itself, in the order in which they run.

        Raises KernelRefused: ENOENT if there is no such cgroup, EPERM for a user who may not ask, ENODATA for
        a host that was recorded without them. HostError where the
        kernel, or vfioctl on this processor, has no such programs."""
        raise KernelRefused(f"{CGROUPS}{cgroup}", errnos.ENODATA)

    def restricted_cgroups(self) -> Sequence[str]:
        """The cgroups that have a program of vfioctl, sorted. Raises what `device_programs` raises."""
        return ()

    def unit_devices(self, cgroup: str) -> UnitDevices | None:
        """What systemd lets the unit open whose cgroup this is, or was of a unit that does not run; None if it is the
        cgroup of no unit, as those are that a unit makes below its own. Raises HostError if systemd does not answer."""
        return None


class DeviceListChanges(Protocol):
    """Changes what cgroups may open."""

    def refuse_devices(self, cgroup: str, numbers: Sequence[str]) -> None:
        """Attaches vfioctl's program that refuses these numbers, then detaches its earlier ones; with no numbers only
        the latter. Programs of others stay. Raises KernelRefused, HostError."""
        raise HostError(f"what {cgroup} may open cannot be changed: {_NO_CGROUPS}", hint="use --simulate to try it")

    def set_unit_devices(self, unit: str, policy: str, allowed: Sequence[str]) -> None:
        """Sets DevicePolicy and DeviceAllow of a unit until the next boot. Raises HostError, Stuck."""
        raise HostError(f"what {unit} may open cannot be changed: {_NO_CGROUPS}", hint="use --simulate to try it")


def is_unit(name: str) -> bool:
    """Return whether this can be the name of a unit that has a cgroup."""
    return len(name) <= LONGEST_UNIT and UNIT.fullmatch(name) is not None
