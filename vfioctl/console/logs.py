"""Writes the log records of the logger `vfioctl` to stderr. May not raise if stderr is closed."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import TextIO

from vfioctl.console.words import plain


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return f"{record.levelname.lower()}: {plain(record.getMessage())}"


class _Stderr(logging.StreamHandler[TextIO]):
    """A handler that ignores a closed or full stderr."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        del record


def log_to_stderr(level: str) -> Callable[[], None]:
    """Log records of `level` and above to stderr until the returned function is called."""
    logger, handler = logging.getLogger("vfioctl"), _Stderr(sys.stderr)
    handler.setFormatter(_Lines())
    before = logger.level
    logger.setLevel(level.upper())
    logger.addHandler(handler)

    def stop() -> None:
        logger.removeHandler(handler)
        logger.setLevel(before)

    return stop
