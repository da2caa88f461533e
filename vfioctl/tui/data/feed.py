"""Reads the host and follows its events in two threads, and keeps what they found until it is taken.

Reads what an event names, and all of it at the start, when that is asked for, and once a minute: nothing reports that
a process opens a device."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from vfioctl.errors import VfioctlError
from vfioctl.inventory.model.values import PciAddress
from vfioctl.overview.model.event import EventSource
from vfioctl.overview.model.overview import Part
from vfioctl.tui.data.extra import Extra, Found
from vfioctl.tui.data.threads import start

if TYPE_CHECKING:
    from vfioctl.core.change import JournalEntry
    from vfioctl.doctor.model.result import DoctorDocument
    from vfioctl.host import Host
    from vfioctl.kubelet.model.status import Status
    from vfioctl.overview.model.event import HostEvent
    from vfioctl.overview.model.overview import Overview

PAUSE = 0.25
"""Seconds between two readings: a storm of events costs at most four a second."""
_SLOW = (Part.HOLDERS, Part.VGPUS, Part.DOMAINS, Part.USAGE)
"""What the first reading leaves out, so that the devices are seen soon."""
_WHOLE = 60.0
_USAGE = 10.0
_MOST_EVENTS = 1000
_INTERVAL = "interval"
"""The action of an event that only says that time has passed."""
MOST_CHANGES = 200
"""The changes that the screen of the history has; `vfioctl history` lists all."""


class News(NamedTuple):
    """What was found since it was taken last. None and empty: nothing new."""

    overview: Overview | None
    problem: str | None
    """Why the last reading failed; empty if it did not."""
    events: tuple[HostEvent, ...]
    changes: Found[tuple[JournalEntry, ...]] | None
    checked: Found[DoctorDocument | None] | None
    kubelet: Found[Status | None] | None


class _Wanted(NamedTuple):
    """What is to be read."""

    addresses: Collection[PciAddress] | None
    """Functions, with the usage if there are none; None for everything."""
    extras: Sequence[Extra[Any]] = ()
    looks: bool = True
    """Whether the host itself is to be read."""


class Feed:
    """The news of one host. `interval`: seconds between looks where nothing notifies.
    `read_only`: why no action is offered, beside what the host says; empty for none."""

    def __init__(self, host: Host, *, interval: float = 2.0, read_only: str = "") -> None:
        self._host, self._interval, self._read_only = host, interval, read_only
        self.changes = Extra[tuple["JournalEntry", ...]](lambda host: host.history(most=MOST_CHANGES), ())
        """The changes of the journal."""
        self.checked = Extra["DoctorDocument | None"](lambda host: host.doctor.examine(), None)
        """What the checks find."""
        self.kubelet = Extra["Status | None"](lambda host: host.kubelet.status(), None, is_live=True)
        """The resources of the device plugin."""
        self._extras: tuple[Extra[Any], ...] = (self.changes, self.checked, self.kubelet)
        self._shown: Extra[Any] | None = None
        self._condition, self._ended = threading.Condition(), threading.Event()
        self._all, self._addresses = True, set[PciAddress]()
        self._overview: Overview | None = None
        self._last: Overview | None = None
        self._problem: str | None = None
        self._events: deque[HostEvent] = deque(maxlen=_MOST_EVENTS)
        self._announce: Callable[[], None] | None = None
        self._announced = False
        self.reading_since: float | None = None
        """When the reading under way began, by the monotonic clock."""

    def start(self) -> None:
        """Start both threads."""
        start("reader", self._read)
        start("watcher", self._watch)

    def stop(self) -> None:
        """End both threads as soon as their calls return."""
        self._ended.set()
        with self._condition:
            self._announce = None
            self._condition.notify_all()

    def announce(self, callback: Callable[[], None]) -> None:
        """Call this in one of the threads when there is news, once until it is taken; at once if there is some now."""
        with self._condition:
            self._announce = callback
            self._announced = is_due = bool(self._overview or self._problem or self._events)
        if is_due:
            callback()

    def take(self) -> News:
        """Return the news."""
        with self._condition:
            news = News(
                overview=self._overview,
                problem=self._problem,
                events=tuple(self._events),
                changes=self.changes.take(),
                checked=self.checked.take(),
                kubelet=self.kubelet.take(),
            )
            self._overview = self._problem = None
            self._events.clear()
            self._announced = False
        return news

    def ask(self, addresses: Collection[PciAddress] | None = None, *extras: Extra[Any]) -> None:
        """Read these functions again, or everything, and these extras too."""
        with self._condition:
            self._all = self._all or addresses is None
            self._addresses.update(addresses or ())
            for extra in extras:
                extra.ask()
            self._condition.notify_all()

    def show(self, extra: Extra[Any] | None) -> None:
        """Read what the screen that is shown needs, and go on with it while it is shown if it is live."""
        with self._condition:
            self._shown = extra
        if extra:
            self.ask((), extra)

    def _tell(self) -> None:
        with self._condition:
            callback = None if self._announced else self._announce
            self._announced = self._announced or callback is not None
        if callback:
            callback()

    def _read(self) -> None:
        self._look(None, without=_SLOW)
        while not self._ended.is_set():
            wanted = self._wanted()
            began = time.monotonic()
            if wanted.looks and not self._ended.is_set():
                self._look(wanted.addresses)
            for extra in wanted.extras:
                if not self._ended.is_set():
                    self._read_extra(extra)
            self._ended.wait(max(0.0, began + PAUSE - time.monotonic()))

    def _wanted(self) -> _Wanted:
        """Wait until something is to be read, and return what."""
        usage = bool(self._last and self._last.usage)
        with self._condition:
            until = time.monotonic() + (_USAGE if usage or self.live else _WHOLE)
            while not (self._all or self._addresses or self._due() or self._ended.is_set()):
                now = time.monotonic()
                if now >= until:
                    self._touch_live()
                    whole = now - self._whole_at >= _WHOLE - _USAGE / 2
                    return _Wanted(None if whole else (), self._taken(), whole or usage)
                self._condition.wait(min([until, *(e.due for e in self._extras if e.due is not None)]) - now)
            addresses = None if self._all else frozenset(self._addresses)
            looks = self._all or bool(self._addresses)
            self._all = False
            self._addresses.clear()
            return _Wanted(addresses, self._taken(), looks)

    _whole_at = 0.0

    @property
    def live(self) -> tuple[Extra[Any], ...]:
        """What is read again when the host has changed, for the screen that is shown."""
        return (self._shown,) if self._shown and self._shown.is_live else ()

    def _touch_live(self) -> None:
        for extra in self.live:
            extra.changed()

    def _due(self) -> list[Extra[Any]]:
        now = time.monotonic()
        return [extra for extra in self._extras if extra.due is not None and extra.due <= now]

    def _taken(self) -> list[Extra[Any]]:
        """Return the extras that are to be read now, which nobody wants any longer then."""
        due = self._due()
        for extra in due:
            extra.begin()
        return due

    def _look(self, addresses: Collection[PciAddress] | None, *, without: Collection[Part] = ()) -> None:
        self.reading_since = time.monotonic()
        problem, overview = "", None
        try:
            if addresses is None or self._last is None:
                overview = self._host.overview(without=without)
                self._whole_at = time.monotonic()
            else:
                overview = self._host.refresh(self._last, addresses, whole=() if addresses else (Part.USAGE,))
        except VfioctlError as error:
            problem = error.message
        if overview and self._read_only:
            overview = replace(overview, read_only=self._read_only)
        with self._condition:
            self._last = self._overview = overview or self._last
            self._problem = problem
            self.reading_since = None
        self._tell()

    def _read_extra(self, extra: Extra[Any]) -> None:
        found = extra.read(self._host)
        with self._condition:
            extra.keep(found)
        self._tell()

    def _watch(self) -> None:
        try:
            for event in self._host.watch(stop=self._ended.is_set, interval=self._interval):
                self._hear(event)
        except VfioctlError as error:
            from vfioctl.overview.model.event import HostEvent

            lost = HostEvent(at=_now(), source=EventSource.WATCH, action="lost", subject="", detail=error.message)
            self._hear(lost)

    def _hear(self, event: HostEvent) -> None:
        if event.source is EventSource.WATCH and event.action == _INTERVAL:
            return  # what is read regularly is read less often
        with self._condition:
            self._events.append(event)
            self._touch_live()
        self.ask(event.addresses or None, *([self.changes] if event.source is EventSource.LEDGER else []))
        self._tell()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
