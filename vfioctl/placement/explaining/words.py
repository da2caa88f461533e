"""Words for counts and sizes in the reasons of a placement. Pure."""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def binary_size(count: int) -> str:
    """Return a number of bytes in the largest unit that needs at most one decimal: `79.6 GiB`."""
    amount, units = float(count), list(_UNITS)
    while amount >= 1024 and len(units) > 1:
        amount, units = amount / 1024, units[1:]
    return f"{amount:.1f}".removesuffix(".0") + f" {units[0]}"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: `1 GPU`, `8 GPUs`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
