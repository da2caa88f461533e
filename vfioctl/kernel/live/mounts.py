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
from collections.abc import Callable, Iterator

from vfioctl.kernel.files import READ

_NS_GET_USERNS = 0xB701
_INITIAL = 0xEFFFFFFD  # PROC_USER_INIT_INO, linux/proc_ns.h
_MOST = 16 << 20  # a user may have 100,000 mounts
_ID, _DEVICE, _OPTIONS = 0, 2, 5  # fields of mountinfo


def descriptor_is_none(pid: str, fd: str) -> bool:
    """Whether this descriptor cannot be of a device file, by its mount. False where that is unknown."""
    try:
        lines = _bytes(f"/proc/{pid}/fdinfo/{fd}").split(b"\n")
        number = next((line.split()[1] for line in lines if line.startswith(b"mnt_id:")), b"")
        return _forbidden(pid, lambda fields: fields[_ID] == number)
    except FileNotFoundError:  # closed meanwhile
        return True
    except (OSError, IndexError):
        return False


def device_is_none(pid: str, device: str) -> bool:
    """Whether no file of the file system with this device number, such as `0:45`, can be a device file."""
    try:
        return _forbidden(pid, lambda fields: fields[_DEVICE] == device.encode())
    except (OSError, IndexError):
        return False


def _forbidden(pid: str, concerned: Callable[[list[bytes]], bool]) -> bool:
    found = [(fields, kind) for fields, kind in _mounts(pid) if concerned(fields)]
    foreign: bool | None = None
    for fields, kind in found:
        if b"nodev" in fields[_OPTIONS].split(b","):
            continue
        if kind.partition(b".")[0] != b"fuse":
            return False
        foreign = _in_user_namespace(pid) if foreign is None else foreign
        if not foreign:
            return False
    return bool(found)


def _mounts(pid: str) -> Iterator[tuple[list[bytes], bytes]]:
    """Yield the fields before the separator, and the file system's type, of each mount that the process sees."""
    for line in _bytes(f"/proc/{pid}/mountinfo").split(b"\n"):
        before, separator, after = line.partition(b" - ")
        if separator:
            yield before.split(b" "), after.split(b" ")[0]


def _in_user_namespace(pid: str) -> bool:
    """Whether the process's mounts belong to another user namespace than the initial one."""
    mounts = os.open(f"/proc/{pid}/ns/mnt", READ)
    try:
        owner = fcntl.ioctl(mounts, _NS_GET_USERNS)
    finally:
        os.close(mounts)
    try:
        return os.fstat(owner).st_ino != _INITIAL
    finally:
        os.close(owner)


def _bytes(path: str) -> bytes:
    fd, data = os.open(path, READ), b""
    try:
        while len(data) < _MOST and (part := os.read(fd, 1 << 20)):
            data += part
    finally:
        os.close(fd)
    return data
