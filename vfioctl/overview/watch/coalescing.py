"""Makes one event of equal ones in a short time, so that a storm of events costs little. Does no input or output."""

from __future__ import annotations

from dataclasses import replace

from vfioctl.overview.model.event import LOST, EventSource, HostEvent

WINDOW = 0.25
"""Seconds in which equal events become one."""
MOST = 2_000
"""Different events in one window; with more, all are lost but the news of that."""


class Coalescing:
    """Events of one window. Times are of a monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._events: dict[tuple[EventSource, str, str], HostEvent] = {}
        self._due: float | None = None

    def add(self, event: HostEvent, *, now: float) -> None:
        """Add an event to its equals of this window; the first one opens the window."""
        if len(self._events) >= MOST:
            self._events = {}
            event = HostEvent(event.at, EventSource.WATCH, LOST, "", detail="too many devices changed at once")
        key = event.source, event.action, event.subject
        known = self._events.get(key)
        if known:
            addresses = tuple(dict.fromkeys((*known.addresses, *event.addresses)))
            event = replace(known, count=known.count + event.count, addresses=addresses, detail=event.detail)
        self._events[key] = event
        self._due = self._due if self._due is not None else now + WINDOW

    def due(self, *, now: float) -> tuple[HostEvent, ...]:
        """Return the events in the order in which they came first, once their window is over."""
        if self._due is None or now < self._due:
            return ()
        events, self._events, self._due = self._events, {}, None
        return tuple(events.values())
