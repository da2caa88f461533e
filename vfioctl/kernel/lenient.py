"""Reads that return an empty or unknown value where the kernel refuses them, instead of raising."""

from __future__ import annotations

import re
from collections.abc import Sequence

from vfioctl.errors import KernelRefused
from vfioctl.kernel.protocol import (
    PCI_ADDRESS,
    PCI_DEVICES,
    PCI_DRIVERS,
    Descendant,
    FileReader,
    Processes,
    Reader,
    per_subject,
)

_FEW_DIGITS = 10
_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)


def text_of(kernel: FileReader, path: str) -> str:
    """A file's text; empty when it cannot be read."""
    try:
        return kernel.read(path)
    except KernelRefused:
        return ""


@per_subject
def text(kernel: FileReader, path: str) -> str:
    """`text_of`, for `Reader.survey`."""
    return text_of(kernel, path)


@per_subject
def text_or_refusal(kernel: FileReader, path: str) -> tuple[str | None, str]:
    """A file's text and an empty text, or None and the errno of the refusal by its name, for `Reader.survey`."""
    try:
        return kernel.read(path), ""
    except KernelRefused as error:
        return None, error.symbol


def permissions_of(kernel: Reader, path: str) -> str:
    """Owner, group and mode of a file or a device node; empty when they are not known."""
    try:
        return kernel.permissions(path)
    except KernelRefused:
        return ""


def names_in(kernel: FileReader, path: str) -> Sequence[str]:
    """A directory's names, sorted; none when it cannot be read."""
    try:
        return kernel.children(path)
    except KernelRefused:
        return ()


def files_in(kernel: FileReader, folders: Sequence[str], ending: str) -> list[str]:
    """The files of configuration directories, those that take precedence first, by their names: one hides those of the
    same name in later directories."""
    places: dict[str, str] = {}
    for folder in folders:
        for name in names_in(kernel, folder):
            if name.endswith(ending):
                places.setdefault(name, folder)
    return [f"{folder}/{name}" for name, folder in sorted(places.items())]


def link_name(kernel: FileReader, path: str) -> str:
    """The last part of a link's target; empty when there is no such link."""
    return target_of(kernel, path).rpartition("/")[2]


def target_of(kernel: FileReader, path: str) -> str:
    """A link's target; empty when there is no such link."""
    try:
        return kernel.link(path)
    except KernelRefused:
        return ""


def number_of(kernel: FileReader, path: str) -> str:
    """A device node's number, as `c 195:0`; empty when the path is no device node."""
    try:
        kind, major, minor = kernel.device_number(path)
    except KernelRefused:
        return ""
    return f"{kind} {major}:{minor}"


def devices_below(kernel: Processes, path: str) -> Sequence[Descendant]:
    """The devices below a directory of sysfs; none when the directory no longer exists."""
    try:
        return kernel.below(path)
    except KernelRefused:
        return ()


def number_in(text: str) -> int | None:
    """A decimal number, as sysfs writes one; None for anything else."""
    if len(text) < _FEW_DIGITS and text.isascii() and text.isdecimal():
        return int(text)
    # strip first: \x1c to \x1f are white space to strip(), but not to int()
    text = text.strip()
    return int(text) if _NUMBER.fullmatch(text) else None


def physical(kernel: FileReader, address: str) -> str:
    """The PF that a VF belongs to; the function itself if it is no VF."""
    name = link_name(kernel, f"{PCI_DEVICES}/{address}/physfn")
    return name if PCI_ADDRESS.fullmatch(name) else address


def nvidia_gpus(kernel: FileReader) -> list[str]:
    """The GPUs that NVML should know: those on the nvidia driver, without VFs."""
    bound = filter(PCI_ADDRESS.fullmatch, names_in(kernel, f"{PCI_DRIVERS}/nvidia"))
    return [address for address in bound if not kernel.has(f"{PCI_DEVICES}/{address}/physfn")]


@per_subject
def text_or_errno(kernel: FileReader, path: str) -> str | int:
    """A file's text, or the errno of the refusal; for `Reader.survey`."""
    try:
        return kernel.read(path)
    except KernelRefused as error:
        return error.errno


def failure_of(error: Exception) -> str:
    """Why looking at one thing failed, for the user: other than a refusal, which has an errno."""
    return f"{type(error).__name__}: {str(error)[:80]}" if str(error) else type(error).__name__
