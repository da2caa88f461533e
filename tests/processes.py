"""Processes that tests fork."""

from __future__ import annotations

import signal

SECONDS = 120


def end_in_time() -> None:
    """Call this in a fork: the kernel ends it after two minutes. A lock that another thread of its parent had is never
    released in a fork, and the test would wait for it without end."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(SECONDS)
