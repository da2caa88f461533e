"""What is known about the device files that processes have open, and whose command lines count."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NamedTuple

NO_PROCESSES = "the capture has no processes"
BELIEVED_USERS = ("root", "qemu", "libvirt-qemu")
"""The users whose processes' command lines are believed, unless configured: those that libvirt runs QEMU as."""


class OpenNode(NamedTuple):
    """A device file that a process has open or mapped."""

    how: str
    """`open` or `mapped`."""
    path: str
    """The path in the process's namespace; for a file without a path, its kind, such as `anon_inode:[vfio-device]`."""
    number: str
    """The device number, such as `c 195:0` or `b 259:1`; empty for a file without a node."""
    device: str
    """The sysfs directory of a VFIO device, if the kernel reports it (fdinfo, Linux 6.17); empty otherwise."""


class Opened(NamedTuple):
    """The device files that a process has open or mapped, as far as they could be read."""

    nodes: tuple[OpenNode, ...] = ()
    unread: str = ""
    """Why some of its files are unknown, any of which may be a device; empty if all were read."""


def is_path_only(fdinfo: bytes) -> bool:
    """Whether a descriptor was opened with O_PATH, by the text of /proc/PID/fdinfo/FD: it does not open the device.
    udev opens the node of a new device so, to set its owner and mode (open(2), proc_pid_fdinfo(5))."""
    for line in fdinfo.split(b"\n"):
        if line.startswith(b"flags:"):
            with suppress(ValueError):
                return bool(int(line.removeprefix(b"flags:"), 8) & os.O_PATH)
    return False
