"""Parses moments in the past: `2h` ago, or a date. Takes the current time as an argument."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from vfioctl.errors import BadSpec

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_HINT = "write it as 30m, 2h, 3d, 2w, 2026-11-01 or 2026-11-01T18:30"


def moment(text: str, *, now: datetime) -> datetime:
    """Return the moment that `90s`, `30m`, `2h`, `3d`, `2w` before `now` was, or an ISO 8601 date or time.

    A time without an offset is UTC, as in the listings. Raises BadSpec.
    """
    if match := re.fullmatch(r"([0-9]{1,5})([smhdw])", text, re.ASCII):
        return now - timedelta(**{_UNITS[match[2]]: int(match[1])})
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise BadSpec(f"not a time: {text[:40]!r}", hint=_HINT) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
