"""Log records of changes: logger `vfioctl.changes`, with plan id, devices, verb and result as fields of each record."""

from __future__ import annotations

import logging

from vfioctl.core.change import Plan
from vfioctl.errors import VfioctlError

CHANGES = "vfioctl.changes"
"""The logger."""
FIELDS = ("plan_id", "devices", "verb", "result")
"""Attributes of its records."""
_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
_DEBUG = 7
_log = logging.getLogger(CHANGES)
_log.addHandler(logging.NullHandler())  # without a handler, Python would print errors a second time


def priority_of(record: logging.LogRecord) -> int:
    """Return the priority of a record in syslog(3) and the journal: 2 to 7."""
    return next((priority for least, priority in _PRIORITIES if record.levelno >= least), _DEBUG)


def log_done(plan: Plan, result: str, *, prefix: str = "") -> None:
    """Log the result of a change that ended as it was meant to."""
    _write(logging.INFO, plan, result, prefix)


def log_failed(plan: Plan, error: BaseException, *, prefix: str = "") -> None:
    """Log a change that was refused, rolled back or interrupted."""
    interrupted = not isinstance(error, VfioctlError)
    result = "interrupted" if interrupted else f"{type(error).__name__}: {error.message}"  # type: ignore[attr-defined]
    _write(logging.ERROR, plan, result, prefix)


def _write(level: int, plan: Plan, result: str, prefix: str) -> None:
    fields = {"plan_id": plan.id, "devices": " ".join(plan.subjects), "verb": plan.intent.verb, "result": result}
    _log.log(level, "%s%s: %s", prefix, plan.intent.title(), result, extra=fields)
