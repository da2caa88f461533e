"""Defers SIGINT, SIGTERM and SIGHUP to where stopping is safe.

Imports nothing of vfioctl. Deferring uses the calling thread's signal mask, so it needs no handlers."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class _State(threading.local):
    deferring = False


_state = _State()
_ALL = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})


class Interrupt(KeyboardInterrupt):
    """A signal asks this process to end. `number`: the signal."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def raise_on_termination() -> None:
    """Let SIGTERM and SIGHUP raise Interrupt in the main thread, unless they are ignored, as with nohup."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _raise)


def _raise(number: int, _frame: FrameType | None) -> None:
    raise Interrupt(number)


@contextmanager
def deferred() -> Iterator[None]:
    """Blocks the signals until the block has ended. If the block raises, pending signals are dropped."""
    if _state.deferring:  # an enclosing block already defers them
        yield
        return
    # the kernel would keep an ignored signal pending while it is blocked
    heard = {number for number in _ALL if signal.getsignal(number) != signal.SIG_IGN}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        _state.deferring = True
        signal.pthread_sigmask(signal.SIG_BLOCK, heard)  # blocks them, and then raises what the handler of one raises
        yield
    except BaseException:
        _take(_ALL - before)
        raise
    finally:
        _state.deferring = False
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def block() -> None:
    """Block the signals for good, in a process that ends now."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _ALL)


def unblock() -> None:
    """Unblocks all signals in a child process, which inherits its parent's mask."""
    _state.deferring = False
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def check_interrupt() -> None:
    """Raises Interrupt, a KeyboardInterrupt, when a deferred signal is pending."""
    if number := _take(_ALL):
        raise Interrupt(number)


def are_deferred() -> bool:
    """Whether a `deferred` block of this thread is running."""
    return _state.deferring


def is_pending() -> bool:
    """Whether a deferred signal is waiting for the end of the block, or for `check_interrupt`."""
    return bool(signal.sigpending() & _ALL)


def _take(signals: frozenset[signal.Signals] | set[signal.Signals]) -> int:
    """Consumes pending signals; the number of the last one, 0 if there was none."""
    taken = 0
    while pending := signal.sigpending() & signals:
        # not sigwait: another thread may have consumed it meanwhile, and sigwait would wait for ever
        received = signal.sigtimedwait(pending, 0)
        taken = received.si_signo if received else taken
    return taken
