"""How much room a guest has for 64-bit BARs. May not do input or output."""

from __future__ import annotations

DEFAULT_HOLE = 32 << 30
"""Bytes of q35's hole without a setting (QEMU, hw/pci-host/q35.c)."""
_WINDOW = 8


def bar_window(bits: int) -> int:
    """Return the bytes that OVMF of before August 2026 has for 64-bit BARs: an eighth of the guest's physical addresses
    (OvmfPkg, PlatformDynamicMmioWindow). `bits`: their width, which is the host's if that is passed on."""
    return (1 << bits) // _WINDOW
