"""Devices of a recorded tree: who has them open, what is below them, their configuration space and ROM. Pure.
`sim:ADDRESS dead = 1` makes one read as a device that has fallen off the bus; `sim:ADDRESS rom = HEX` is its ROM."""

from __future__ import annotations

import errno as errnos
import re
import struct
from collections.abc import Iterator

from vfioctl.errors import KernelRefused
from vfioctl.kernel.files import symbol
from vfioctl.kernel.live.process_files import in_text
from vfioctl.kernel.live.processes import DELETED, SYSPATH
from vfioctl.kernel.open_nodes import Opened, OpenNode, is_path_only
from vfioctl.kernel.protocol import PCI_ADDRESS, PCI_DEVICES, VFIO_DEVICE, Descendant
from vfioctl.kernel.recorded.tree import Tree

_REFUSED_TO_USERS = re.compile(r"/proc/[0-9]+/(fd|maps)", re.ASCII)
_TO_USERS = (errnos.EACCES, errnos.EPERM)
_BYTES = 64
_MEMORY, _MASTER, _CAPABILITIES = 0x2, 0x4, 0x10
_BRIDGE, _SEVERAL_FUNCTIONS = 0x01, 0x80


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
        elif (number := _node_number(tree, target)) and not is_path_only(fdinfo.encode()):
            yield OpenNode("open", target, number, "")


def _mapped(tree: Tree, home: str) -> Iterator[OpenNode]:
    for _, _, name in in_text(tree.files.get(f"{home}/maps", "").encode()):
        path = name.removesuffix(DELETED).decode()
        number = _node_number(tree, path)
        if number or path == VFIO_DEVICE:
            yield OpenNode("mapped", path, number, "")


def _node_number(tree: Tree, path: str) -> str:
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


def config_of(tree: Tree, address: str) -> bytes:
    """A type 0 or 1 header (PCI Local Bus 3.0, 6.1): ids, class, whether memory is decoded. Raises KernelRefused."""
    if "vendor" not in _names(tree, address):
        raise KernelRefused(f"{PCI_DEVICES}/{address}/config", errnos.ENOENT)
    if is_dead(tree, address):
        return b"\xff" * _BYTES
    # a VF's own ids read as all ones (SR-IOV 1.1, 3.4.1.1); sysfs shows its PF's ids
    is_vf = "physfn" in _names(tree, address)
    vendor, device = (0xFFFF if is_vf else _number(tree, address, name) for name in ("vendor", "device"))
    subsystem = (_number(tree, address, name) for name in ("subsystem_vendor", "subsystem_device"))
    class_code = _number(tree, address, "class", 0xFFFFFF)
    command = _MEMORY | _MASTER if _number(tree, address, "enable") else 0
    identity = class_code << 8 | _number(tree, address, "revision", 0xFF)
    start = struct.pack("<4HI2xBx", vendor, device, command, _CAPABILITIES, identity, _header_type(tree, address))
    return (start.ljust(0x2C, b"\0") + struct.pack("<2H", *subsystem)).ljust(_BYTES, b"\0")


def rom_of(tree: Tree, address: str) -> bytes:
    """The function's ROM in the host file. Raises KernelRefused, also while the function sleeps."""
    path = f"{PCI_DEVICES}/{address}/rom"
    digits = tree.properties.get(f"sim:{address}", {}).get("rom")
    if digits is None or not _names(tree, address):
        raise KernelRefused(path, errnos.ENOENT)
    asleep = is_dead(tree, address) or _text(tree, address, "power_state").startswith("D3")
    if asleep or not _number(tree, address, "enable"):
        raise KernelRefused(path, errnos.EIO)  # pci_get_rom_size: 0xffff is not the signature, so the size is 0
    try:
        return bytes.fromhex(digits)
    except ValueError:
        raise KernelRefused(path, errnos.EIO) from None


def is_dead(tree: Tree, address: str) -> bool:
    """Whether all reads of the function return ones."""
    return tree.properties.get(f"sim:{address}", {}).get("dead") == "1"


def _header_type(tree: Tree, address: str) -> int:
    slot = address.rpartition(".")[0]
    others = [name for name in tree.directories.get(PCI_DEVICES, ()) if name.startswith(slot) and name != address]
    return (_BRIDGE if _text(tree, address, "class").startswith("0x0604") else 0) | (_SEVERAL_FUNCTIONS * bool(others))


def _names(tree: Tree, address: str) -> set[str]:
    return tree.directories.get(tree.resolve(f"{PCI_DEVICES}/{address}"), set())


def _number(tree: Tree, address: str, name: str, most: int = 0xFFFF) -> int:
    try:
        return int(_text(tree, address, name), 0) & most
    except ValueError:
        return 0


def _text(tree: Tree, address: str, name: str) -> str:
    try:
        return tree.text(f"{PCI_DEVICES}/{address}/{name}")
    except KernelRefused:
        return ""
