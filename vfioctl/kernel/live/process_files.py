"""What /proc says of the files of a process: tables of descriptors, mappings, mounts. Reads only."""

from __future__ import annotations

import errno as errnos
import fcntl
import os
import re
import struct
from array import array
from collections.abc import Iterator
from functools import cached_property

from vfioctl.kernel.descriptors import call, closing
from vfioctl.kernel.files import READ, read_bytes

_KCMP = {"x86_64": 312, "aarch64": 272, "riscv64": 272, "loongarch64": 272, "ppc64le": 354, "s390x": 343}
_KCMP_FILES = 2  # linux/kcmp.h
_ONE_THREAD = 3  # links of /proc/PID/task: itself, its parent, one directory
# struct procmap_query, linux/fs.h: size, flags, address; start, end, flags, page size, offset, inode; major and minor
# number of the device; sizes of the buffers for name and build id; their addresses.
_QUERY = struct.Struct("=9Q4I2Q")
_PROCMAP_QUERY = 3 << 30 | _QUERY.size << 16 | ord("f") << 8 | 17
_COVERING_OR_NEXT, _FILE_BACKED, _SHARED = 0x10, 0x20, 0x08
_LONGEST = 4096
# One line of /proc/PID/maps with a file: range, device and inode, path (Documentation/filesystems/proc.rst).
LINE = re.compile(rb"^([0-9a-f]+-[0-9a-f]+) \S+ \S+ (\S+ [1-9][0-9]*) +(/.*|anon_inode:\[vfio-device\])$", re.M)

Mapping = tuple[bytes, bytes, bytes]
"""The range as /proc/PID/map_files names it; device and inode, which identify the file; the path,
empty if it is too long to be reported."""
_NS_GET_USERNS = 0xB701
_INITIAL = 0xEFFFFFFD  # PROC_USER_INIT_INO, linux/proc_ns.h
_MOST = 64 << 20
_ID, _DEVICE, _OPTIONS = 0, 2, 5  # fields of mountinfo


def tables(pid: str) -> list[str]:
    """The process, and one of its threads for each other table of descriptors (unshare(CLONE_FILES)). /proc/PID/fd
    shows the table of the thread that began the process, and is empty when that one has ended and others go on. Where
    the kernel does not compare tables (kcmp), all threads. Raises OSError when the process has ended."""
    if os.stat(f"/proc/{pid}/task").st_nlink == _ONE_THREAD:
        return [pid]
    others = [name for name in os.listdir(f"/proc/{pid}/task") if name != pid]
    try:
        return [pid, *_distinct(pid, others)]
    except OSError:
        return [pid, *others]


def _distinct(pid: str, others: list[str]) -> list[str]:
    ordered = [pid]  # as the kernel orders tables: a process may have thousands
    for thread in others:
        low, high = 0, len(ordered)
        while low < high:
            middle = (low + high) // 2
            order = _compared(int(thread), int(ordered[middle]))
            if order == 0:
                break
            low, high = (low, middle) if order == 1 else (middle + 1, high)
        else:
            ordered.insert(low, thread)
    return [thread for thread in ordered if thread != pid]


def _compared(one: int, other: int) -> int:
    """0 for the same table, 1 or 2 for one before or after the other. Raises OSError where that is unknown."""
    number = _KCMP.get(os.uname().machine)
    if number is None:
        raise OSError(errnos.ENOSYS, os.strerror(errnos.ENOSYS))
    return call(number, one, other, _KCMP_FILES, 0, 0)


def file_mappings(pid: str) -> Iterator[Mapping]:
    """The mappings of files that can be devices. Raises OSError. The ioctl is many times faster, and returns shared
    mappings only. A private mapping is copy on write: VFIO and DRM refuse it, and programs do not map a device
    privately and then close its file."""
    with closing(os.open(f"/proc/{pid}/maps", READ)) as fd:
        try:
            yield from _queried(fd)
        except OSError as error:
            if error.errno != errnos.ENOTTY:
                raise
            yield from _in_file(fd)


def _queried(fd: int) -> Iterator[Mapping]:
    name, query, end = array("B", bytes(_LONGEST)), bytearray(_QUERY.size), 0
    place, flags = name.buffer_info()[0], _COVERING_OR_NEXT | _FILE_BACKED | _SHARED
    while True:
        try:
            _QUERY.pack_into(query, 0, _QUERY.size, flags, end, *[0] * 8, _LONGEST, 0, place, 0)
            fcntl.ioctl(fd, _PROCMAP_QUERY, query)
        except FileNotFoundError:  # no further mapping
            return
        except OSError as error:
            if error.errno != errnos.ENAMETOOLONG:
                raise
            _QUERY.pack_into(query, 0, _QUERY.size, flags, end, *[0] * 12)  # the same mapping, without its path
            fcntl.ioctl(fd, _PROCMAP_QUERY, query)
        answer = _QUERY.unpack_from(query)
        start, end, (inode, major, minor, length) = *answer[3:5], answer[8:12]
        yield b"%x-%x" % (start, end), b"%02x:%02x %d" % (major, minor, inode), name[: max(length - 1, 0)].tobytes()


def _in_file(fd: int) -> Iterator[Mapping]:
    """From the text of the file, a part at a time: of a process with many mappings and long paths it is very large."""
    rest = b""
    while part := os.read(fd, 1 << 16):
        *lines, rest = (rest + part).split(b"\n")
        yield from in_text(b"\n".join(lines))


def in_text(text: bytes) -> Iterator[Mapping]:
    """From the text of /proc/PID/maps, where ranges have leading zeros that the names in map_files do not have."""
    for place, key, path in LINE.findall(text):
        yield b"-".join(end.lstrip(b"0") or b"0" for end in place.split(b"-")), key, path


class Mounts:
    """Whether the mount of a file allows device files, for files that the kernel refuses to describe.

    The mounts that the process sees are read once and only when needed: a user may have 100,000. A user's file on FUSE
    answers EACCES even to root, and ENOTCONN when its server has ended. It cannot be a device: FUSE that a user mounts
    with fusermount has the option nodev, and a file system that is mounted in a user namespace never opens devices
    (SB_I_NODEV, sget_userns), although its options do not say so. Mount ids and device numbers come from the kernel;
    the file exists as long as it is open, so its mount's id cannot belong to another mount. A mount that the process
    does not see, such as a detached one, proves nothing."""

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
