"""Reads and replaces the config.json of an OCI bundle. Follows no links in it, and opens nothing but a regular file.
As root, the bundle must be a directory that only root can change. The file keeps its owner and its mode."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from vfioctl.containers.cdi.files import host_error, read_within
from vfioctl.errors import BadDocument, Busy
from vfioctl.kernel.files import write_into
from vfioctl.kernel.trusted import opened_directory
from vfioctl.untrusted_text import parse_json

NAME = "config.json"
MOST_STATE = 1 << 20
_BUNDLE = re.compile(r"/[^\0]{0,4095}")


class Opened(NamedTuple):
    """The file as it was read."""

    directory: int
    data: bytes
    status: os.stat_result


@contextmanager
def opened_config(bundle: Path) -> Iterator[Opened]:
    """Read a bundle's config.json. Raises HostError."""
    hint = "name a bundle's directory that only you can change"
    with host_error(f"{bundle / NAME} cannot be edited", hint=hint), opened_directory(str(bundle)) as directory:
        yield Opened(directory, *read_within(directory, NAME))


def replace_config(opened: Opened, data: bytes) -> None:
    """Replace the file as a whole. Raises OSError, and Busy if it has changed since it was read."""
    now = os.stat(NAME, dir_fd=opened.directory, follow_symlinks=False)
    before = opened.status
    if (now.st_ino, now.st_mtime_ns, now.st_size) != (before.st_ino, before.st_mtime_ns, before.st_size):
        raise Busy(f"another program has changed {NAME} meanwhile", hint="try again")
    owner = (before.st_uid, before.st_gid)
    write_into(opened.directory, NAME, data, mode=stat.S_IMODE(before.st_mode), owner=owner)


def bundle_in(state: bytes) -> Path | None:
    """Return the bundle in a container's state (hooks' stdin); None for a configuration. Else raises BadDocument."""
    problem = "what comes on stdin is neither a container's state nor its configuration"
    try:
        document: Any = parse_json(state, strict=True)
    except ValueError as error:
        raise BadDocument(f"{problem}: {error}") from None
    if isinstance(document, dict):
        if isinstance(document.get("bundle"), str) and _BUNDLE.fullmatch(document["bundle"]):
            return Path(document["bundle"])
        if "ociVersion" in document and "process" in document:
            return None
    raise BadDocument(problem, hint="as a hook, it has the path of the bundle; by hand, name the bundle")
