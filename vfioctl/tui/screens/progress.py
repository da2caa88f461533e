"""The lines of a change under way: each step with its time, lock, verification, rollback, end. Reads no clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from vfioctl.console.words import plain
from vfioctl.core.events import EventKind, StepEvent
from vfioctl.errors import Cancelled

if TYPE_CHECKING:
    from vfioctl.core.registry import Registry

_BUSY, _DONE, _FAILED = "...", "done", "failed"
_STYLES = {_FAILED: "bold red", _BUSY: "bold"}


def progress_lines(
    events: Sequence[StepEvent], registry: Registry, now: float, *, is_done: bool = False
) -> Iterator[Text]:
    """Yield a line for each step and for what comes between. `now`: seconds of `time.monotonic`."""
    depth, events = "", _once(events)
    for number, event in enumerate(events):
        following = events[number + 1] if number + 1 < len(events) else None
        until = following.at if following else now
        words = _words(event, registry)
        if event.kind in (EventKind.END, EventKind.FAILED) or not words:
            continue
        state = _state(following, is_done=is_done)
        timed = _times(until - event.at, None if following or is_done else event.timeout)
        if event.kind in (EventKind.ROLLBACK, EventKind.CLOSED):
            state, timed = "", ""
        if event.kind is EventKind.ROLLBACK:
            depth = "  "
        yield Text.assemble((f"{state:7}", _STYLES.get(state, "green")), f"{timed:>8}  ", depth, words)
        if following and following.kind is EventKind.FAILED and following.error:
            yield Text(f"{'':17}{depth}{_error(following.error)}", style="red")


def _once(events: Sequence[StepEvent]) -> Sequence[StepEvent]:
    """Return the events without repetitions of the one that tells of the lock."""
    before = (None, *(event.kind for event in events))
    pairs = zip(events, before, strict=False)
    return [event for event, last in pairs if event.kind is not EventKind.LOCK or last is not EventKind.LOCK]


def _state(following: StepEvent | None, *, is_done: bool) -> str:
    if following is None:
        return "" if is_done else _BUSY
    return _FAILED if following.kind in (EventKind.FAILED, EventKind.ROLLBACK) else _DONE


def _words(event: StepEvent, registry: Registry) -> str:
    if event.kind is EventKind.LOCK:
        return "waiting for another vfioctl that is changing this host"
    if event.kind is EventKind.BEGIN and event.step:
        return plain(f"[{event.number}/{event.total}] {registry.action(event.step).progress(event.step)}")
    if event.kind is EventKind.VERIFY:
        return "reading the host again, to verify the change"
    if event.kind is EventKind.ROLLBACK:
        return f"{_failure(event)}: rolling back"
    if event.kind is EventKind.CLOSED:
        return "rolled back" if event.error else "verified: the change is done"
    return ""


def _failure(event: StepEvent) -> str:
    if event.step:
        return f"failed at step {event.number}"
    return "cancelled" if isinstance(event.error, Cancelled) else "verification failed"


def _error(error: BaseException) -> str:
    said = getattr(error, "kernel_said", "")
    return plain(f"{error}: {said}" if said else str(error))


def _times(seconds: float, timeout: float | None) -> str:
    """`0.4 s`, or `4 of 30 s`: how long it has taken, and after how long it is given up."""
    if timeout:
        return f"{seconds:.0f} of {timeout:g} s"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def state_line(events: Sequence[StepEvent], now: float, began: float) -> str:
    """Return the state in a few words, such as `step 3 of 12, 4 s`, for the line below the screens."""
    events = _once(events)
    step = next((event for event in reversed(events) if event.kind is EventKind.BEGIN), None)
    last = events[-1] if events else None
    back = any(event.kind is EventKind.ROLLBACK for event in events)
    since = f"{now - (last.at if last else began):.0f} s"
    if last is None:
        return f"starting, {since}"
    if last.kind is EventKind.LOCK:
        return f"waits for another vfioctl, {since}"
    if last.kind is EventKind.VERIFY:
        return f"is verified, {since}"
    return f"{'rollback, ' if back else ''}step {step.number} of {step.total}, {since}" if step else since
