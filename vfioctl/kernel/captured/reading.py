"""Reads directories of a captured host by their descriptors. Follows no link, and opens no FIFO and no device."""

from __future__ import annotations

import os

from vfioctl.kernel import untrusted_files

_LOOK = os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW
_ATTRIBUTE = 4096


def read_attribute(name: str, directory: int) -> str:
    """The beginning of a file, as of an attribute of sysfs. Raises OSError, for a link too."""
    fd = os.open(name, _LOOK, dir_fd=directory)
    try:
        return text_of(fd, _ATTRIBUTE)
    finally:
        os.close(fd)


def text_of(fd: int, most: int) -> str:
    """The beginning of a file that was opened with O_PATH. Raises OSError."""
    return untrusted_files.read_regular(fd, most).decode("utf-8", "replace").rstrip("\n")


def read_below(name: str, folder: str, directory: int) -> str:
    """The same for the file `name` in a directory of a directory. Raises OSError (ENOTDIR) for a link to one."""
    below = os.open(folder, _LOOK | os.O_DIRECTORY, dir_fd=directory)
    try:
        return read_attribute(name, below)
    finally:
        os.close(below)
