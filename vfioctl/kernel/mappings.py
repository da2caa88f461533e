"""The files that a process has mapped: by the ioctl PROCMAP_QUERY (Linux 6.11), else from the text of maps.

Reads only, and opens no file but /proc/PID/maps.
"""

from __future__ import annotations

import errno as errnos
import fcntl
import os
import re
import struct
from array import array
from collections.abc import Iterator

from vfioctl.kernel.descriptors import closing
from vfioctl.kernel.files import READ

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


def file_mappings(pid: str) -> Iterator[Mapping]:
    """The mappings of files that can be devices. Raises OSError.

    The ioctl is many times faster, and returns shared mappings only. A private mapping is copy on write: VFIO and DRM
    refuse it, and programs do not map a device privately and then close its file.
    """
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
