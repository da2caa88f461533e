"""Reads the answers of an MPS daemon. They are another program's text: what is not understood counts as unknown.

May not do input or output."""

from __future__ import annotations

import re

from vfioctl.sharing.mps.share import MIB

MOST = 1024
"""Servers, or clients, that are listed; a server has at most 60."""
_PID = re.compile("[0-9]{1,10}", re.ASCII)
_PERCENT = re.compile(r"([0-9]{1,3})(?:\.[0-9]{1,6})?", re.ASCII)
_SIZE = re.compile(r"([0-9]{1,18})([KMG]?)B?", re.ASCII)
_UNITS = {"": 1, "K": 1 << 10, "M": MIB, "G": 1 << 30}


def pids_in(text: str) -> tuple[int, ...] | None:
    """Return the process ids in a list, one a line; None for any other answer."""
    lines = text.split()
    if len(lines) > MOST or not all(_PID.fullmatch(line) for line in lines):
        return None
    return tuple(dict.fromkeys(int(line) for line in lines))


def percent_in(text: str) -> int | None:
    """Return the percentage in an answer such as `40.0`, rounded down; None for any other answer."""
    match = _PERCENT.fullmatch(text.strip())
    number = int(match[1]) if match else 0
    return number if 1 <= number <= 100 else None


def size_in(text: str) -> int | None:
    """Return the bytes in an answer such as `2G` or `2048M`; None for any other answer, as without a limit."""
    match = _SIZE.fullmatch(text.strip())
    return int(match[1]) * _UNITS[match[2]] or None if match else None


def status_in(text: str) -> str:
    """Return a server's status, such as `ACTIVE` or `FAULT`; `unknown` for an answer that is no such word."""
    word = text.strip()
    return word if re.fullmatch("[A-Z_ ]{1,40}", word) else "unknown"


def speaks_v3(usage: str) -> bool:
    """Return whether the control program knows MPS v3: its usage then names both options that v3 needs."""
    return "--protocol" in usage and "--apply" in usage
