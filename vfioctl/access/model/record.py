"""What root notes of a device node that somebody else may open: udev reads it, too. May not do input or output."""

from __future__ import annotations

import re
from typing import NamedTuple

from vfioctl.claims.model.access import Access, labelled_access
from vfioctl.errors import BadSpec
from vfioctl.kernel.host_paths import ACCESS_RUN

PERMISSIONS, NOTE = "permissions", "access"
"""The kinds of resource."""
NODE = re.compile(r"/dev/vfio/(?:[0-9]{1,9}|devices/vfio[0-9]{1,9})", re.ASCII)
FILE = re.compile(rf"{re.escape(ACCESS_RUN)}/((?:vfio)?[0-9]{{1,9}})", re.ASCII)
FORM = r"[0-9]{1,10}:[0-9]{1,10}:[0-7]{3,4}"
"""Owner, group and mode of a node."""
_TEXT = re.compile(
    rf"VFIOCTL_OWNER=([0-9]{{1,10}})\nVFIOCTL_GROUP=([0-9]{{1,10}})\nVFIOCTL_MODE=([0-7]{{3}})\n"
    rf"VFIOCTL_BEFORE=({FORM})",
    re.ASCII,
)


class Record(NamedTuple):
    """Who may open a node, and what its permissions were before."""

    access: Access
    before: str

    @property
    def text(self) -> str:
        """The text of the file, without the last newline: properties that udev imports."""
        uid, gid, mode = self.access.permissions.split(":")
        return f"VFIOCTL_OWNER={uid}\nVFIOCTL_GROUP={gid}\nVFIOCTL_MODE={mode}\nVFIOCTL_BEFORE={self.before}"


def record_in(text: str) -> Record | None:
    """Return what a file says; None if it is not as vfioctl writes it."""
    match = _TEXT.fullmatch(text)
    if match is None:
        return None
    try:
        record = Record(labelled_access(f"{match[1]}:{match[2]}"), match[4])
    except BadSpec:
        return None
    return record if record.text == text else None


def file_of(node: str) -> str:
    """Return the file for a node: named like the node's device in the kernel, which a udev rule can name."""
    return f"{ACCESS_RUN}/{node.rpartition('/')[2]}"


def node_of(name: str) -> str:
    """Return the node that a file is for, by the file's name."""
    return f"/dev/vfio/devices/{name}" if name.startswith("vfio") else f"/dev/vfio/{name}"


def subject_of(node: str) -> str:
    """Return what changes of a node are about. It is not the device: claims reserve that for their own changes."""
    name = node.rpartition("/")[2]
    return name if name.startswith("vfio") else f"group-{name}"
