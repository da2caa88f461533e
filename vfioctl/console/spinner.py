"""A line on the terminal's stderr that shows that a command is still working, and for how long.

It appears after half a second. A timer signal and not a thread waits for that: a process with threads cannot fork its
worker, and a fast command would be slower on a terminal."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING

from vfioctl.console.words import plain

if TYPE_CHECKING:
    from threading import Event, Lock

PATIENCE = 0.5
"""Seconds that a person waits without a sign of life."""
_INTERVAL = 0.1
_FRAMES = "|/-\\"
_COLUMNS = 80
_ERASE = b"\r\x1b[K"


class Spinner:
    """One line, drawn by a thread until it is stopped. `timeout`: in seconds, shown beside the elapsed time.

    Made and stopped by the main thread only."""

    def __init__(self, text: str, timeout: float | None = None) -> None:
        self._text, self._timeout = text, timeout
        self._since = time.monotonic()
        self._over = self._drawn = False
        self._drawing: tuple[Event, Lock] | None = None
        if signal.getitimer(signal.ITIMER_REAL)[0]:  # the command has a time limit of its own
            return
        signal.signal(signal.SIGALRM, self._begin)
        signal.siginterrupt(signal.SIGALRM, False)  # noqa: FBT003 - calls of libraries go on
        signal.setitimer(signal.ITIMER_REAL, PATIENCE)

    def stop(self) -> None:
        """Erase the line. It is not drawn again."""
        self._over = True
        if signal.getsignal(signal.SIGALRM) == self._begin:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if self._drawing is None:
            return
        stopped, lock = self._drawing
        stopped.set()
        with lock:
            if self._drawn:
                _write(_ERASE)
            self._drawn = False

    def _begin(self, *_: object) -> None:
        if self._over:
            return
        from threading import Event, Lock, Thread

        self._drawing = Event(), Lock()
        Thread(target=self._draw, args=self._drawing, name="spinner", daemon=True).start()

    def _draw(self, stopped: Event, lock: Lock) -> None:
        # a signal that the main thread blocks must not reach it through this one
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        for number in count():
            with lock:
                if stopped.is_set():
                    return
                _write(_ERASE + self._line(number).encode("ascii", "replace"))
                self._drawn = True
            stopped.wait(_INTERVAL)

    def _line(self, number: int) -> str:
        limit = f" of at most {self._timeout:g} s" if self._timeout else ""
        line = f"{_FRAMES[number % len(_FRAMES)]} {plain(self._text)}: {time.monotonic() - self._since:.1f} s{limit}"
        columns = 0
        with suppress(OSError):
            columns = os.get_terminal_size(2).columns
        return line[: (columns or _COLUMNS) - 1]  # a serial console may not know its size


def _write(data: bytes) -> None:
    # not through sys.stderr, whose lock the main thread may have
    with suppress(OSError):
        os.write(2, data)
