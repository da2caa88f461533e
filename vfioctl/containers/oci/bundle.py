"""Reads and replaces the config.json of an OCI bundle. Follows no links in it, and opens nothing but a regular file.

As root, the bundle must be a directory that only root can change. The file keeps its owner and its mode.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from vfioctl.containers.cdi.elsewhere import read_within
from vfioctl.errors import Busy, HostError
from vfioctl.kernel.files import write_into
from vfioctl.kernel.trusted import opened_directory

NAME = "config.json"


class Opened(NamedTuple):
    """The file as it was read."""

    directory: int
    data: bytes
    status: os.stat_result


@contextmanager
def opened_config(bundle: Path) -> Iterator[Opened]:
    """Read a bundle's config.json. Raises HostError."""
    try:
        with opened_directory(str(bundle)) as directory:
            yield Opened(directory, *read_within(directory, NAME))
    except OSError as error:
        failure = HostError(
            f"{bundle / NAME} cannot be edited", hint="name a bundle's directory that only you can change"
        )
        failure.kernel_said = error.strerror or str(error)
        raise failure from None


def replace_config(opened: Opened, data: bytes) -> None:
    """Replace the file as a whole. Raises OSError, and Busy if it has changed since it was read."""
    now = os.stat(NAME, dir_fd=opened.directory, follow_symlinks=False)
    if (now.st_ino, now.st_mtime_ns, now.st_size) != (
        opened.status.st_ino,
        opened.status.st_mtime_ns,
        opened.status.st_size,
    ):
        raise Busy(f"another program has changed {NAME} meanwhile", hint="try again")
    owner = (opened.status.st_uid, opened.status.st_gid)
    write_into(opened.directory, NAME, data, mode=stat.S_IMODE(opened.status.st_mode), owner=owner)
