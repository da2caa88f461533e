"""Reads the texts of /etc/passwd and /etc/group. Does no input or output. Sources: passwd(5), group(5)."""

from __future__ import annotations

import re
from collections.abc import Iterable

ID = re.compile("[0-9]{1,10}", re.ASCII)
_FIELDS = 4


def entries(text: str) -> Iterable[list[str]]:
    """Return the fields of passwd(5) and group(5), as far as the lines have them."""
    return (fields for line in text.splitlines() if len(fields := line.split(":")) >= _FIELDS)


def names_by_id(text: str) -> dict[int, str]:
    """Return the names of users or groups by their numbers."""
    known = [(int(f[2]), f[0]) for f in entries(text) if ID.fullmatch(f[2])]
    return dict(reversed(known))  # of two names of one id the first counts


def memberships(text: str) -> dict[str, list[int]]:
    """Return the gids of the supplementary groups of each user."""
    members: dict[str, list[int]] = {}
    for fields in entries(text):
        for name in filter(None, fields[3].split(",") if ID.fullmatch(fields[2]) else ()):
            members.setdefault(name, []).append(int(fields[2]))
    return members
