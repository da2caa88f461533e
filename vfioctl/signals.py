"""Ctrl-C, a termination and a lost terminal, heard only where stopping is safe.

Imports nothing of vfioctl. Works on the calling thread's signal mask, so it needs no handlers.
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
    """Signals wait until the block has ended; a block that fails raises its failure, not theirs."""
    if _state.deferring:  # by a block around this one, which ends later
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
    """In a child: no signal is blocked that its parent had blocked."""
    _state.deferring = False
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def check_interrupt() -> None:
    """Raises KeyboardInterrupt when one is waiting."""
    if _take(_ALL):
        raise KeyboardInterrupt


def _take(of: frozenset[signal.Signals] | set[signal.Signals]) -> bool:
    """Whether one was waiting; it waits no more."""
    taken = False
    while waiting := signal.sigpending() & of:
        # not sigwait: another thread of this process may have taken it meanwhile, and it would wait for ever
        taken = signal.sigtimedwait(waiting, 0) is not None or taken
    return taken


held_back, let_go, listen = deferred, unblock, check_interrupt  # until every caller uses the new names
