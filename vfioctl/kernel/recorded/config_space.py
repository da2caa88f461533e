"""The configuration space and the ROM of a recorded function. Does no input or output.

`sim:ADDRESS dead = 1` makes it read as a device that has fallen off the bus; `sim:ADDRESS rom = HEX` is its ROM.
"""

from __future__ import annotations

import errno as errnos
import struct

from vfioctl.errors import KernelRefused
from vfioctl.kernel.protocol import PCI_DEVICES
from vfioctl.kernel.recorded.tree import Tree

_BYTES = 64
_MEMORY, _MASTER, _CAPABILITIES = 0x2, 0x4, 0x10
_BRIDGE, _SEVERAL_FUNCTIONS = 0x01, 0x80


def config_of(tree: Tree, address: str) -> bytes:
    """A type 0 or 1 header (PCI Local Bus 3.0, 6.1) with ids, class, and whether memory is decoded.

    Raises KernelRefused.
    """
    if "vendor" not in _names(tree, address):
        raise KernelRefused(f"{PCI_DEVICES}/{address}/config", errnos.ENOENT)
    if is_dead(tree, address):
        return b"\xff" * _BYTES
    # a VF's own ids read as all ones (SR-IOV 1.1, 3.4.1.1); sysfs shows its PF's ids
    vendor, device = (
        0xFFFF if "physfn" in _names(tree, address) else _number(tree, address, name) for name in ("vendor", "device")
    )
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
