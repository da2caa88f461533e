"""Reads that cost one fact when they fail, and no more."""

from __future__ import annotations

from collections.abc import Sequence

from vfioctl.errors import KernelRefused
from vfioctl.kernel.protocol import Descendant, FileReader, Processes, per_subject


def text_of(kernel: FileReader, path: str) -> str:
    """A file's text; empty when it cannot be read."""
    try:
        return kernel.read(path)
    except KernelRefused:
        return ""


@per_subject
def text(kernel: FileReader, path: str) -> str:
    """`text_of`, for `Isolation.survey`."""
    return text_of(kernel, path)


def names_in(kernel: FileReader, path: str) -> Sequence[str]:
    """A directory's names, sorted; none when it cannot be read."""
    try:
        return kernel.children(path)
    except KernelRefused:
        return ()


def link_name(kernel: FileReader, path: str) -> str:
    """The last part of a link's target; empty when there is no such link."""
    try:
        return kernel.link(path).rpartition("/")[2]
    except KernelRefused:
        return ""


def number_of(kernel: FileReader, path: str) -> str:
    """A device node's number, as `c 195:0`; empty when it is none."""
    try:
        kind, major, minor = kernel.device_number(path)
    except KernelRefused:
        return ""
    return f"{kind} {major}:{minor}"


def devices_below(kernel: Processes, path: str) -> Sequence[Descendant]:
    """The devices below a directory of sysfs; none when it has gone."""
    try:
        return kernel.below(path)
    except KernelRefused:
        return ()
