"""Reads and writes vfioctl's CDI file in a directory that the user named. Follows no other user's links as root."""

from __future__ import annotations

import errno as errnos
import os
from collections.abc import Iterator
from contextlib import contextmanager

from vfioctl.containers.cdi.validate import MOST_BYTES
from vfioctl.errors import HostError
from vfioctl.kernel.descriptors import closing
from vfioctl.kernel.files import replace_file
from vfioctl.kernel.trusted import opened_directory, status_of
from vfioctl.kernel.untrusted_files import read_regular


def read(path: str) -> str:
    """Return the text of the file; empty if there is none. Raises HostError."""
    with _reported(path, "read"):
        return _text(path)


def replace(path: str, text: str) -> None:
    """Replace the file as a whole; remove it if there is no text. Raises HostError."""
    with _reported(path, "written" if text else "removed"):
        replace_file(path, text or None)


def _text(path: str) -> str:
    folder, name = os.path.split(path)
    try:
        with opened_directory(folder) as directory:
            return (
                "" if status_of(directory, name) is None else read_within(directory, name)[0].decode("utf-8", "replace")
            )
    except FileNotFoundError:
        return ""


def read_within(directory: int, name: str) -> tuple[bytes, os.stat_result]:
    """Return the content and the status of a regular file in an open directory, following no link. Raises OSError."""
    with closing(os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)) as fd:
        data, status = read_regular(fd, MOST_BYTES + 1), os.fstat(fd)
    if len(data) > MOST_BYTES:
        raise OSError(errnos.EFBIG, f"it is larger than {MOST_BYTES >> 20} MiB")
    return data, status


@contextmanager
def _reported(path: str, verb: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        failure = HostError(f"{path} could not be {verb}", hint="name a directory that only you can change")
        failure.kernel_said = error.strerror or str(error)
        raise failure from None
