"""The devices below a device in a captured directory, which may be hostile: no link is followed. Reads only."""

from __future__ import annotations

from collections.abc import Callable, Collection

from vfioctl.errors import KernelRefused
from vfioctl.kernel.live.processes import WITHOUT_DEVICES
from vfioctl.kernel.protocol import PCI_ADDRESS, Descendant, Directory

ReadDirectory = Callable[[str, Collection[str]], Directory]
"""`FileReader.directory` with all links."""


def below_captured(read: ReadDirectory, path: str) -> list[Descendant]:
    """As `live.processes.below`, in the same order. Raises KernelRefused when `path` is no directory."""
    found, todo = [], _entries(path, read(path, ()))
    while todo:
        here = todo.pop()
        try:
            directory = read(here, ("dev",))
        except KernelRefused:  # most entries are files
            continue
        if "subsystem" in directory.links:
            subsystem = directory.links["subsystem"].rpartition("/")[2]
            found.append(Descendant(here, subsystem, directory.texts.get("dev", "")))
        todo += _entries(here, directory)
    return found


def _entries(path: str, found: Directory) -> list[str]:
    """The paths of what may be directories, in reverse order, because the last one is read next."""
    names = sorted(found.names - set(found.links) - WITHOUT_DEVICES, reverse=True)
    return [f"{path}/{name}" for name in names if not PCI_ADDRESS.fullmatch(name)]
