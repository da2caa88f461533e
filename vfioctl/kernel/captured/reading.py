"""Reads directories of a captured host by their descriptors. Follows no link, and opens no FIFO and no device."""

from __future__ import annotations

import errno as errnos
import os

from vfioctl.kernel import outside
from vfioctl.kernel.files import readable, symbol
from vfioctl.kernel.protocol import Directory

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
    return outside.read_regular(fd, most).decode("utf-8", "replace").rstrip("\n")


def read_texts_below(fd: int, name: str) -> Directory:
    """The attribute `name` of each directory in a directory."""
    texts, refused, names = {}, {}, os.listdir(fd)
    for folder in names:
        try:
            texts[readable(folder)] = _read_below(fd, folder, name)
        except OSError as error:
            if error.errno != errnos.ENOTDIR:
                refused[readable(folder)] = symbol(error.errno or errnos.EIO)
    return Directory(frozenset(map(readable, names)), texts, {}, refused)


def _read_below(fd: int, folder: str, name: str) -> str:
    below = os.open(folder, _LOOK | os.O_DIRECTORY, dir_fd=fd)
    try:
        return read_attribute(name, below)
    finally:
        os.close(below)
