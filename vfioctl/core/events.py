"""How the caller of a change follows it and stops it: its events, for a progress callback, and its cancellation."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from vfioctl.errors import Cancelled
from vfioctl.signals import check_interrupt

if TYPE_CHECKING:
    from vfioctl.core.change import Step


class EventKind(StrEnum):
    LOCK = "lock"
    """Another process is changing the host; this one waits for it."""
    BEGIN = "begin"
    """A step begins."""
    END = "end"
    """The step is done."""
    FAILED = "failed"
    """The step failed, with `error`. If the step is optional (`Step.may_fail`), the next one follows."""
    VERIFY = "verify"
    """All steps are done. The host is read again, until it is as planned or the time is over."""
    ROLLBACK = "rollback"
    """The rollback of the change begins, because of `error`. Its own steps and verification follow."""
    CLOSED = "closed"
    """The journal entry is closed: the change is done, or rolled back because of `error`. An entry that stays open, as
    when a write never returns, has no such event."""


class StepEvent(NamedTuple):
    """One event. `step`, with its `number` from 1 and the `total` of steps, for BEGIN, END and FAILED; for ROLLBACK the
    step that failed, if one did."""

    kind: EventKind
    step: Step | None = None
    number: int = 0
    total: int = 0
    at: float = 0.0
    """Seconds of `time.monotonic`."""
    timeout: float | None = None
    """Seconds after which the lock, the step or the verification is given up, if that is known when it begins."""
    error: BaseException | None = None


Progress = Callable[[StepEvent], None]
"""A callback for the events of a change, called in the thread that applies the change. A KeyboardInterrupt that it
raises at BEGIN, END or VERIFY is an interrupt like any other: the change is rolled back."""

Cancel = Callable[[], bool]
"""Whether the change is to be cancelled, such as `threading.Event().is_set`. It is asked in the thread that applies the
change: while it waits for the lock, between two steps and during verification, and not during a rollback."""


def check_stop(cancel: Cancel | None) -> None:
    """Raise Interrupt when a deferred signal is pending, and Cancelled when the caller cancels."""
    check_interrupt()
    if cancel and cancel():
        raise Cancelled("cancelled")


def notify(progress: Progress | None, event: StepEvent) -> None:
    """Call the callback, if there is one, with the event and the time."""
    if progress:
        progress(event._replace(at=time.monotonic()))
