"""The names of devices in CDI files, and which node of VFIO each one is. May not do input or output. A name is made of
what a reboot does not change, a function's address or a mediated device's UUID; an IOMMU group's number may."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from os.path import normpath

from vfioctl.errors import BadSpec
from vfioctl.inventory.model.values import PciAddress, Subject
from vfioctl.kernel.host_paths import CDI_RUN
from vfioctl.units import UUID, Uuid

KIND = "vfioctl/vfio"
"""The kind of devices, unless another one is asked for."""
SEEN = (CDI_RUN, "/run/cdi")
"""Two names of the directory of vfioctl's CDI files."""

CONTROL_NODE = "/dev/vfio/vfio"
"""What a process that uses group nodes needs besides them."""
_PART = r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?"
_KIND = re.compile(rf"(?<![A-Za-z0-9_.-])({_PART})/({_PART})", re.ASCII)
_LONGEST_KIND = 127
_NAME = re.compile(r"([0-9a-f]{4,8})-([0-9a-f]{2})-([0-9a-f]{2})\.([0-7])", re.ASCII)
GROUP_NODE = re.compile(r"/dev/vfio/(?:noiommu-)?[0-9]{1,9}", re.ASCII)
CDEV_NODE = re.compile(r"/dev/vfio/devices/vfio[0-9]{1,9}", re.ASCII)


class Node(StrEnum):
    """Which node of a device a container gets. Never both: a runtime that gets both attaches the device twice."""

    GROUP = "group"
    """/dev/vfio/N, with /dev/vfio/vfio."""
    CDEV = "cdev"
    """/dev/vfio/devices/vfioN, of IOMMUFD."""


@dataclass(frozen=True, slots=True)
class CdiDevice:
    """One device of a CDI file, and its node."""

    subject: Subject
    node: str

    @property
    def name(self) -> str:
        return device_name(self.subject)


def device_name(subject: Subject) -> str:
    """Return a device's name: `0000-41-00.0`, or a UUID. The specification allows no colon, though runtimes do."""
    return str(subject).replace(":", "-") if isinstance(subject, PciAddress) else str(subject)


def subject_called(name: str) -> Subject:
    """Return the device that has this name. Raises BadSpec."""
    if UUID.fullmatch(name) and name == name.lower():
        return Uuid(name)
    if match := _NAME.fullmatch(name):
        return PciAddress(f"{match[1]}:{match[2]}:{match[3]}.{match[4]}")
    raise BadSpec(f"not the name that vfioctl gives a device: {name[:60]!r}")


def qualified_name(subject: Subject, kind: str = KIND) -> str:
    """Return what `podman run --device` takes: `vfioctl/vfio=0000-41-00.0`."""
    return f"{kind}={device_name(subject)}"


def checked_kind(text: str) -> str:
    """Return a kind `vendor/class`. Raises BadSpec."""
    if len(text) > _LONGEST_KIND or not _KIND.fullmatch(text):
        raise BadSpec(
            f"not a kind of CDI devices: {text[:60]!r}",
            hint="write it as vendor/class, such as vfioctl/vfio: letters, digits, and - _ . between them",
        )
    return text


def file_name(kind: str) -> str:
    """Return the name of vfioctl's file for a kind."""
    return "vfioctl.json" if kind == KIND else f"vfioctl-{kind.replace('/', '-')}.json"


def cdi_file(kind: str) -> str:
    """Return the path of vfioctl's file for a kind, where runtimes look for it."""
    return f"{CDI_RUN}/{file_name(kind)}"


def is_vfio_node(path: str) -> bool:
    """Return whether it is a node of a device or of a group."""
    return bool(GROUP_NODE.fullmatch(path) or CDEV_NODE.fullmatch(path))


def node_path(text: str) -> str:
    """Return the path of a device node in one form: `/dev//vfio/./9` is `/dev/vfio/9`."""
    return "/" + normpath(text).lstrip("/")
