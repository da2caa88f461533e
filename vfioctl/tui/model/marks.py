"""The few marks that are no letters, and whether the terminal can show them. May not do input or output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Marks(NamedTuple):
    """Marks of one column each, but for the ellipsis."""

    opened: str
    closed: str
    sorted: str
    ellipsis: str
    line: str
    """A vertical line between two panels."""


ASCII = Marks("-", "+", "v", "~", "|")
UNICODE = Marks(
    "\N{BLACK DOWN-POINTING SMALL TRIANGLE}",
    "\N{BLACK RIGHT-POINTING SMALL TRIANGLE}",
    "\N{BLACK DOWN-POINTING TRIANGLE}",
    "…",
    "│",
)
_SIMPLE = ("linux", "vt100", "vt102", "vt220", "ansi", "cons25")
"""Terminals whose fonts have only few characters."""


def shows_unicode(environment: Mapping[str, str]) -> bool:
    """Whether the terminal shows UTF-8: by its locale (locale(7)) and its type."""
    names = (environment.get(name, "") for name in ("LC_ALL", "LC_CTYPE", "LANG"))
    locale = next(filter(None, names), "")
    if locale == "C.UTF-8" and not environment.get("LC_ALL") and environment.get("LANG", "C") in ("", "C", "POSIX"):
        return False  # Python has set it: with the locale C, it coerces LC_CTYPE (PEP 538)
    is_utf8 = locale.lower().replace("-", "").partition(".")[2].startswith("utf8")
    return is_utf8 and environment.get("TERM", "") not in _SIMPLE


def marks_for(environment: Mapping[str, str]) -> Marks:
    """Return the marks that the terminal shows."""
    return UNICODE if shows_unicode(environment) else ASCII
