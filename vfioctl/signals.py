"""Ctrl-C, a termination and a lost terminal, heard only where stopping is safe.

Imports nothing of vfioctl. Works on the calling thread's signal mask, so it needs no handlers.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _State(threading.local):
    held = False


_state = _State()
_ALL = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})


@contextmanager
def held_back() -> Iterator[None]:
    """They wait until the block has ended; a block that fails tells of its failure, not of them."""
    if _state.held:  # by a block around this one, which ends later
        yield
        return
    _state.held = True
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ALL)
    try:
        yield
    except BaseException:
        _take(_ALL - before)
        raise
    finally:
        _state.held = False
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def let_go() -> None:
    """In a child: nothing is held back that its parent held back."""
    _state.held = False
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def listen() -> None:
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
