"""Reads a function's configuration space and ROM. Runs in a worker: both can block on the device lock."""

from __future__ import annotations

import errno as errnos
import os

CONFIG_BYTES = 64
MOST_ROM = 16 << 20
"""The largest expansion ROM that a BAR can have (PCI Local Bus 3.0, 6.2.5.2)."""

_CHUNK = 1 << 16

# Values that every kernel accepts. In older ones pci_write_rom (drivers/pci/pci-sysfs.c) switches the ROM off only for
# two bytes at offset 0 of which the first is "0", so a single "0" leaves the ROM on; Linux 6.1 uses kstrtobool.
_ON, _OFF = b"1\n", b"0\n"


def config_or_errno(path: str) -> bytes | int:
    """As `read_config`, but returns the errno instead of raising."""
    try:
        return read_config(path)
    except OSError as error:
        return error.errno or errnos.EIO


def rom_or_errno(path: str) -> bytes | int:
    """As `read_rom`, but returns the errno instead of raising."""
    try:
        return read_rom(path)
    except OSError as error:
        return error.errno or errnos.EIO


def read_config(path: str) -> bytes:
    """The first 64 bytes of the file `config`. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, CONFIG_BYTES)
    finally:
        os.close(fd)


def read_rom(path: str) -> bytes:
    """The file `rom`, at most 16 MiB. Switches the ROM on before and off afterwards. Raises OSError."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.pwrite(fd, _ON, 0)
        try:
            return _read_all(fd)
        finally:
            os.pwrite(fd, _OFF, 0)
    finally:
        os.close(fd)


def _read_all(fd: int) -> bytes:
    data = bytearray()
    while len(data) < MOST_ROM and (more := os.pread(fd, min(_CHUNK, MOST_ROM - len(data)), len(data))):
        data += more
    return bytes(data)
