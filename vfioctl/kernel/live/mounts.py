"""Whether the mount of a file allows device files, for files that the kernel refuses to describe. Reads /proc only.

A user's file on FUSE answers EACCES even to root, and ENOTCONN when its server has ended. It cannot be a device: FUSE
that a user mounts with fusermount has the option nodev, and a file system that is mounted in a user namespace never
opens devices (SB_I_NODEV, sget_userns), although its options do not say so. Mount ids and device numbers come from the
kernel; the file exists as long as it is open, so its mount's id cannot belong to another mount. A mount that the
process does not see, such as a detached one, proves nothing.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from functools import cached_property

from vfioctl.kernel.descriptors import closing
from vfioctl.kernel.files import READ, read_bytes

_NS_GET_USERNS = 0xB701
_INITIAL = 0xEFFFFFFD  # PROC_USER_INIT_INO, linux/proc_ns.h
_MOST = 64 << 20
_ID, _DEVICE, _OPTIONS = 0, 2, 5  # fields of mountinfo


class Mounts:
    """The mounts that a process sees, read once and only when needed: a user may have 100,000."""

    def __init__(self, pid: str) -> None:
        self._pid = pid

    def descriptor_is_none(self, fd: str) -> bool:
        """Whether this descriptor cannot be of a device file, by its mount. False where that is unknown."""
        try:
            lines = read_bytes(f"/proc/{self._pid}/fdinfo/{fd}").split(b"\n")
            number = next((line.split()[1] for line in lines if line.startswith(b"mnt_id:")), b"")
            return number in self._forbidding[0]
        except FileNotFoundError:  # closed meanwhile
            return True
        except (OSError, IndexError):
            return False

    def device_is_none(self, device: str) -> bool:
        """Whether no file of the file system with this device number, such as `0:45`, can be a device file."""
        try:
            return device.encode() in self._forbidding[1]
        except (OSError, IndexError):
            return False

    @cached_property
    def _forbidding(self) -> tuple[frozenset[bytes], frozenset[bytes]]:
        """The ids of the mounts, and the file systems, that allow no device files."""
        ids, forbidding, allowing = set[bytes](), set[bytes](), set[bytes]()
        apart = _in_user_namespace(self._pid)
        for fields, kind in _mounts(self._pid):
            forbids = b"nodev" in fields[_OPTIONS].split(b",") or (apart and kind.partition(b".")[0] == b"fuse")
            if forbids:
                ids.add(fields[_ID])
            (forbidding if forbids else allowing).add(fields[_DEVICE])
        return frozenset(ids), frozenset(forbidding - allowing)


def _mounts(pid: str) -> Iterator[tuple[list[bytes], bytes]]:
    """Yield the fields before the separator, and the file system's type, of each mount that the process sees."""
    for line in read_bytes(f"/proc/{pid}/mountinfo", _MOST).split(b"\n"):
        before, separator, after = line.partition(b" - ")
        if separator:
            yield before.split(b" "), after.split(b" ")[0]


def _in_user_namespace(pid: str) -> bool:
    """Whether the process's mounts belong to another user namespace than the initial one."""
    with closing(os.open(f"/proc/{pid}/ns/mnt", READ)) as mounts:
        owner = fcntl.ioctl(mounts, _NS_GET_USERNS)
    with closing(owner):
        return os.fstat(owner).st_ino != _INITIAL
