"""The physical addresses that a guest on QEMU's q35 uses. Pure."""

from __future__ import annotations

_GIB = 1 << 30
_BELOW_4G, _SPLIT_FROM = 2 * _GIB, 0xB0000000
"""q35 has so much memory below 4 GiB, if there is at least so much in all (hw/i386/pc_q35.c)."""


def end_of_hole(memory: int, hole: int) -> int:
    """Return the first address above the 64-bit hole, which is above the memory; all in bytes.

    QEMU does not start if the guest's CPU cannot address all of it (hw/i386/pc.c, pc_max_used_gpa; from 7.1 on).
    """
    above = memory - _BELOW_4G if memory >= _SPLIT_FROM else 0
    return 4 * _GIB + -(-above // _GIB) * _GIB + hole


def most_memory(hole: int, bits: int) -> int:
    """Return the most memory with which a hole ends where so many bits of addresses do; 0 if there is no such."""
    left = (1 << bits) - hole - 4 * _GIB
    return left + _BELOW_4G if left >= 0 else 0
