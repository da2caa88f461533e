"""When and by whom a claim is changed. Reads the clock and this process, and changes nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from vfioctl.claims.ledger.ledger import Moment

if TYPE_CHECKING:
    from vfioctl.session import Session


def moment_of(session: Session) -> Moment:
    """Return now, this boot and this process."""
    from vfioctl.core.caller import this_process

    return Moment(now(), session.boot_id, this_process())


def now() -> str:
    """Return the time, as claims have it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def after(begin: str, seconds: float | None) -> str | None:
    """Return the time after that number of seconds; None for never."""
    if seconds is None:
        return None
    return (datetime.fromisoformat(begin) + timedelta(seconds=seconds)).isoformat(timespec="milliseconds")


def runs(pid: int | None, then: str, boot_id: str) -> bool:
    """Return whether a process of the boot `then` still runs in this one."""
    from vfioctl.core.caller import is_running

    return then == boot_id and pid is not None and is_running(pid)
