"""Formats sizes, counts, lists and untrusted text. May not import anything else of vfioctl."""

from __future__ import annotations

from collections.abc import Iterable

NONE = "none"
UNKNOWN = "unknown"


def plain(text: str) -> str:
    """Return one line without control characters, so that untrusted text cannot control the terminal.

    All text that comes from a host, a file or a process must pass through this function before it is printed.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def size(count: int) -> str:
    """Format a number of bytes in the largest binary unit that needs at most one decimal."""
    amount, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while amount >= 1024 and len(units) > 1:
        amount, units = amount / 1024, units[1:]
    return f"{amount:.1f}".removesuffix(".0") + f" {units[0]}"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: `1 GPU`, `8 GPUs`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def listed(items: Iterable[object]) -> str:
    """Join items: `a`, `a and b`, `a, b and c`."""
    words = [str(item) for item in items]
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1] if words else "")))
