"""Reads files that anyone may have written: plans, host files, configurations, files of captured directories. Only
regular files are read, and no more than a given number of bytes. FIFOs, devices and sockets are never opened: opening
one can block for ever, and some devices act on it."""

from __future__ import annotations

import errno as errnos
import os
import stat
from contextlib import suppress
from typing import BinaryIO

from vfioctl.environment import named_descriptors
from vfioctl.kernel.descriptors import closing
from vfioctl.kernel.files import READ, read_up_to

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFLNK: "a symbolic link",
}
_LOOK = os.O_PATH | os.O_CLOEXEC


def read_file(path: str | os.PathLike[str], most: int) -> bytes:
    """A file's content. Raises OSError: ENXIO for what is no regular file, EFBIG for more than `most` bytes. The text
    of these errors is fit for the user. A pipe that this process was started with may be named as /dev/fd/N, which is
    what `<(command)` becomes in a shell: it is read like stdin."""
    if (pipe := _inherited_pipe(os.fspath(path))) is not None:
        with open(os.dup(pipe), "rb") as stream:
            return read_stream(stream, most)
    return _whole(read_start(path, most + 1), most)


def read_stream(stream: BinaryIO, most: int) -> bytes:
    """All that comes from a stream, such as stdin, which may be a pipe. Raises OSError: EFBIG as for `read_file`."""
    return _whole(stream.read(most + 1), most)


def _inherited_pipe(path: str) -> int | None:
    """The descriptor that exactly this text names; not one that a link in a directory of another user leads to."""
    for fd in named_descriptors([path]):
        with suppress(OSError):
            if path in (f"/dev/fd/{fd}", f"/proc/self/fd/{fd}") and stat.S_ISFIFO(os.fstat(fd).st_mode):
                return fd
    return None


def read_start(path: str | os.PathLike[str], most: int) -> bytes:
    """At most the first `most` bytes of a file. Raises OSError: ENXIO for what is no regular file."""
    try:
        fd = os.open(path, _LOOK)
    except ValueError:  # a null byte, or text that is no name
        raise OSError(errnos.EINVAL, os.strerror(errnos.EINVAL)) from None
    with closing(fd):
        return read_regular(fd, most)


def read_regular(fd: int, most: int) -> bytes:
    """As `read_start`, for a descriptor that was opened with O_PATH. Raises OSError, also EISDIR."""
    mode = os.fstat(fd).st_mode
    if stat.S_ISDIR(mode):
        raise OSError(errnos.EISDIR, os.strerror(errnos.EISDIR))
    if not stat.S_ISREG(mode):
        raise OSError(errnos.ENXIO, f"it is {_KINDS.get(stat.S_IFMT(mode), 'special')}, not a regular file")
    with closing(os.open(f"/proc/self/fd/{fd}", READ)) as opened:  # the same file, whatever its name leads to by now
        return read_up_to(opened, most)


def _whole(data: bytes, most: int) -> bytes:
    if len(data) > most:
        size = f"{most >> 20} MiB" if most >= 1 << 20 else f"{most >> 10} KiB"
        raise OSError(errnos.EFBIG, f"it is larger than {size}")
    return data
