"""Ctrl-C, a termination and a lost terminal, heard only where stopping is safe.

Imports nothing of vfioctl. Works on the calling thread's signal mask, so it needs no handlers.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

_ALL = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})


@contextmanager
def held_back() -> Iterator[None]:
    """They wait until the block has ended; a block that fails tells of its failure, not of them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ALL)
    try:
        yield
    except BaseException:
        _take(_ALL - before)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def listen() -> None:
    """Raises KeyboardInterrupt when one is waiting."""
    if _take(_ALL):
        raise KeyboardInterrupt


def _take(of: frozenset[signal.Signals] | set[signal.Signals]) -> bool:
    """Whether one was waiting; it waits no more."""
    taken = False
    while waiting := signal.sigpending() & of:
        signal.sigwait(waiting)
        taken = True
    return taken
