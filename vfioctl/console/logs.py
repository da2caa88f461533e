"""Writes the log records of the logger `vfioctl` to stderr. May not raise if stderr is closed."""

from __future__ import annotations

import logging
from collections.abc import Callable

from vfioctl.console.output import say_error


class _Stderr(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        say_error(f"{record.levelname.lower()}: {record.getMessage()}")


def log_to_stderr(level: str) -> Callable[[], None]:
    """Log records of `level` and above to stderr until the returned function is called."""
    logger, handler = logging.getLogger("vfioctl"), _Stderr()
    before = logger.level
    logger.setLevel(level.upper())
    logger.addHandler(handler)

    def stop() -> None:
        logger.removeHandler(handler)
        logger.setLevel(before)

    return stop
