"""How a service tells the journal and systemd of itself, and how signals end it. May not know what it serves."""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from vfioctl.serving.logs import log_as_json
from vfioctl.serving.notify import Heartbeat, Notifier

_HANGS = 60.0
"""Seconds after which a service that does not ask whether to stop counts as hanging."""


@contextmanager
def ended_by_signals() -> Iterator[Callable[[], bool]]:
    """Take SIGTERM and SIGINT while the block runs; the value returns whether one has come. Garbage is collected from
    then on."""
    gc.enable()  # off in commands that end soon
    stop = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in before:
        signal.signal(number, lambda *_: stop.set())
    try:
        yield stop.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Signs:
    """What the service shows of itself to systemd. `stop` is asked again and again, which is the sign of life."""

    def __init__(self, is_stopping: Callable[[], bool]) -> None:
        self._notifier, self._is_stopping = Notifier(), is_stopping
        self._asked, self._told = time.monotonic(), False
        self.heartbeat = Heartbeat(self._notifier, lambda: time.monotonic() - self._asked < _HANGS)

    def ready(self, what: str) -> None:
        """The service is up."""
        self._notifier.ready(what)

    def stop(self) -> bool:
        """Return whether to end the service."""
        self._asked = time.monotonic()
        if self._is_stopping() and not self._told:
            self._told = True
            self._notifier.stopping()
        return self._told


@contextmanager
def running(is_stopping: Callable[[], bool]) -> Iterator[Signs]:
    """Log as JSON, and send signs of life, while the block runs."""
    signs, stop_logging = Signs(is_stopping), log_as_json()
    signs.heartbeat.start()
    try:
        yield signs
    finally:
        signs.heartbeat.close()
        stop_logging()
