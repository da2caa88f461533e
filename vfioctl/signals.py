"""Defers SIGINT, SIGTERM and SIGHUP to where stopping is safe.

Imports nothing of vfioctl. Uses the calling thread's signal mask, so it needs no handlers.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _State(threading.local):
    deferring = False


_state = _State()
_ALL = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})


@contextmanager
def deferred() -> Iterator[None]:
    """Blocks the signals until the block has ended. If the block raises, pending signals are dropped."""
    if _state.deferring:  # an enclosing block already defers them
        yield
        return
    _state.deferring = True
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ALL)
    try:
        yield
    except BaseException:
        _take(_ALL - before)
        raise
    finally:
        _state.deferring = False
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unblock() -> None:
    """Unblocks all signals in a child process, which inherits its parent's mask."""
    _state.deferring = False
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def check_interrupt() -> None:
    """Raises KeyboardInterrupt when a deferred signal is pending."""
    if _take(_ALL):
        raise KeyboardInterrupt


def _take(signals: frozenset[signal.Signals] | set[signal.Signals]) -> bool:
    """Consumes pending signals; whether there were any."""
    taken = False
    while pending := signal.sigpending() & signals:
        # not sigwait: another thread may have consumed it meanwhile, and sigwait would wait for ever
        taken = signal.sigtimedwait(pending, 0) is not None or taken
    return taken
