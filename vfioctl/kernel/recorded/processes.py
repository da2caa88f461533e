"""Processes and descendants of devices in a recorded tree: the counterpart of `live.processes`."""

from __future__ import annotations

import errno as errnos
import re
from collections.abc import Iterator

from vfioctl.errors import KernelRefused
from vfioctl.kernel.files import symbol
from vfioctl.kernel.live.process_files import in_text
from vfioctl.kernel.live.processes import DELETED, SYSPATH
from vfioctl.kernel.open_nodes import Opened, OpenNode, is_path_only
from vfioctl.kernel.protocol import PCI_ADDRESS, VFIO_DEVICE, Descendant
from vfioctl.kernel.recorded.tree import Tree

_REFUSED_TO_USERS = re.compile(r"/proc/[0-9]+/(fd|maps)", re.ASCII)
_TO_USERS = (errnos.EACCES, errnos.EPERM)


def read_by_root(tree: Tree) -> bool:
    """Whether root recorded the processes: nobody was refused the descriptors of another user's process."""
    refused = [*tree.refused.items()]  # in one go: another thread may add some to a simulated host
    return not any(_REFUSED_TO_USERS.fullmatch(path) for path, errno in refused if errno in _TO_USERS)


def open_nodes(tree: Tree, pid: str) -> Opened:
    """The device files in /proc/PID/fd and /proc/PID/maps. Raises KernelRefused."""
    home = f"/proc/{pid}"
    if home not in tree.directories:
        raise KernelRefused(home, errnos.ENOENT)
    for name in ("fd", "maps"):
        if f"{home}/{name}" in tree.refused:
            raise KernelRefused(f"{home}/{name}", tree.refused[f"{home}/{name}"])
    names = sorted(tree.directories.get(f"{home}/fd", ()))
    refused = [(name, tree.refused[f"{home}/fd/{name}"]) for name in names if f"{home}/fd/{name}" in tree.refused]
    unread = [f"its file descriptor {name} could not be read ({symbol(errno)})" for name, errno in refused]
    return Opened(tuple(dict.fromkeys([*_opened(tree, home), *_mapped(tree, home)])), next(iter(unread), ""))


def _opened(tree: Tree, home: str) -> Iterator[OpenNode]:
    for name in sorted(tree.directories.get(f"{home}/fd", ())):
        target, fdinfo = tree.links.get(f"{home}/fd/{name}", ""), tree.files.get(f"{home}/fdinfo/{name}", "")
        if target == VFIO_DEVICE:
            yield OpenNode("open", target, "", _device_of(fdinfo))
        elif (number := _number(tree, target)) and not is_path_only(fdinfo.encode()):
            yield OpenNode("open", target, number, "")


def _mapped(tree: Tree, home: str) -> Iterator[OpenNode]:
    for _, _, name in in_text(tree.files.get(f"{home}/maps", "").encode()):
        path = name.removesuffix(DELETED).decode()
        number = _number(tree, path)
        if number or path == VFIO_DEVICE:
            yield OpenNode("mapped", path, number, "")


def _number(tree: Tree, path: str) -> str:
    node = tree.nodes.get(tree.resolve(path)) if path.startswith("/") else None
    return f"{node.kind} {node.major}:{node.minor}" if node else ""


def _device_of(fdinfo: str) -> str:
    mark = SYSPATH.decode()
    return next((line.removeprefix(mark).strip() for line in fdinfo.split("\n") if line.startswith(mark)), "")


def below(tree: Tree, path: str) -> Iterator[Descendant]:
    """The devices below a directory, except those below another PCI function."""
    for name in sorted(tree.directories.get(path, ())):
        here = f"{path}/{name}"
        if here not in tree.directories or PCI_ADDRESS.fullmatch(name):
            continue
        if f"{here}/subsystem" in tree.links:
            subsystem = tree.links[f"{here}/subsystem"].rpartition("/")[2]
            yield Descendant(here, subsystem, tree.files.get(f"{here}/dev", ""))
        yield from below(tree, here)
