"""A line on the terminal's stderr that shows that a command is still working, and for how long.

It appears after half a second. Imported only if stderr is a terminal, as it imports threading."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from itertools import count
from threading import Event, Lock, Thread

from vfioctl.console.words import plain

PATIENCE = 0.5
"""Seconds that a person waits without a sign of life."""
_INTERVAL = 0.1
_FRAMES = "|/-\\"
_COLUMNS = 80
_ERASE = b"\r\x1b[K"


class Spinner:
    """One line, drawn by a thread until it is stopped. `timeout`: in seconds, shown beside the elapsed time."""

    def __init__(self, text: str, timeout: float | None = None) -> None:
        self._text, self._timeout = text, timeout
        self._stopped, self._lock, self._drawn = Event(), Lock(), False
        self._since = time.monotonic()
        Thread(target=self._run, name="spinner", daemon=True).start()

    def stop(self) -> None:
        """Erase the line. It is not drawn again."""
        self._stopped.set()
        with self._lock:
            if self._drawn:
                _write(_ERASE)
            self._drawn = False

    def _run(self) -> None:
        # a signal that the main thread blocks must not reach it through this one
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        wait = PATIENCE
        for number in count():
            if self._stopped.wait(wait):
                return
            with self._lock:
                if not self._stopped.is_set():
                    _write(_ERASE + self._line(number).encode("ascii", "replace"))
                    self._drawn = True
            wait = _INTERVAL

    def _line(self, number: int) -> str:
        limit = f" of at most {self._timeout:g} s" if self._timeout else ""
        line = f"{_FRAMES[number % len(_FRAMES)]} {plain(self._text)}: {time.monotonic() - self._since:.1f} s{limit}"
        columns = 0
        with suppress(OSError):
            columns = os.get_terminal_size(2).columns
        return line[: (columns or _COLUMNS) - 1]  # a serial console may not know its size


def _write(data: bytes) -> None:
    # not through sys.stderr: its lock would be held in a child that is forked meanwhile
    with suppress(OSError):
        os.write(2, data)
