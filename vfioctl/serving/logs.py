"""Writes the log of the service to stderr: one JSON object a line, for the journal and for log collectors of nodes."""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Callable
from datetime import UTC, datetime

from vfioctl.console.output import say_error
from vfioctl.core.logs import CHANGES, FIELDS, priority_of

_ROOT = "vfioctl"
_FIELDS = (*FIELDS, "resource", "claim", "error", "cgroup", "gpu")
"""Attributes of a log record that become fields: those of changes, and those of the service. `error`: its class."""
_LONGEST = 4096
"""Maximum length of a text, in characters."""
_STDERR = 2


def log_as_json() -> Callable[[], None]:
    """Write vfioctl's log records to stderr, in place of its other handlers, until the returned function is called."""
    logger, handler = logging.getLogger(_ROOT), JsonHandler(in_journal=_is_journal(_STDERR))
    before, level = logger.handlers[:], logger.level
    logger.setLevel(min(logger.getEffectiveLevel(), logging.INFO))
    logger.handlers[:] = [handler]

    def stop() -> None:
        logger.handlers[:] = before
        logger.setLevel(level)

    return stop


class JsonHandler(logging.Handler):
    """Writes records to stderr. `in_journal`: stderr is the journal. Lines then begin with their priority (sd-daemon(3)
    says how), and changes are left out: the journal gets them with fields of its own."""

    def __init__(self, *, in_journal: bool) -> None:
        super().__init__()
        self._in_journal = in_journal

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record; drop it if stderr is closed."""
        if not self._in_journal:
            say_error(json.dumps(_document(record)))
        elif record.name != CHANGES:
            say_error(f"<{priority_of(record)}>{json.dumps(_document(record))}")


def _document(record: logging.LogRecord) -> dict[str, str]:
    values = {name: getattr(record, name, None) for name in _FIELDS}
    document = {
        "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": record.getMessage()[:_LONGEST],
        **{name: str(value)[:_LONGEST] for name, value in values.items() if value is not None},
    }
    if record.exc_info:
        document["traceback"] = logging.Formatter().formatException(record.exc_info)[-_LONGEST:]
    return document


def _is_journal(descriptor: int) -> bool:
    """Whether a descriptor is the journal: systemd sets JOURNAL_STREAM to its device and inode, systemd.exec(5)."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return False
    return stat.S_ISSOCK(status.st_mode) and os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"
