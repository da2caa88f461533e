"""Reads the host and follows its events in two threads, and keeps what they found until it is taken.

Reads what an event names, and all of it at the start, when that is asked for, and once a minute: nothing reports that
a process opens a device."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from vfioctl.errors import VfioctlError
from vfioctl.overview.model.event import EventSource
from vfioctl.overview.model.overview import Part
from vfioctl.tui.data.threads import start

if TYPE_CHECKING:
    from vfioctl.core.change import JournalEntry
    from vfioctl.doctor.model.result import DoctorDocument
    from vfioctl.host import Host
    from vfioctl.inventory.model.values import PciAddress
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
    changes: tuple[JournalEntry, ...] | None
    changes_problem: str
    checked: DoctorDocument | None
    checked_problem: str


class Feed:
    """The news of one host. `interval`: seconds between looks where nothing notifies.
    `read_only`: why no action is offered, beside what the host says; empty for none."""

    def __init__(self, host: Host, *, interval: float = 2.0, read_only: str = "") -> None:
        self._host, self._interval, self._read_only = host, interval, read_only
        self._condition, self._ended = threading.Condition(), threading.Event()
        self._addresses: set[PciAddress]
        self._all, self._addresses, self._history, self._doctor = True, set(), False, False
        self._overview: Overview | None = None
        self._last: Overview | None = None
        self._problem: str | None = None
        self._events: deque[HostEvent] = deque(maxlen=_MOST_EVENTS)
        self._changes: tuple[JournalEntry, ...] | None = None
        self._changes_problem = ""
        self._checked: DoctorDocument | None = None
        self._checked_problem = ""
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
                changes=self._changes,
                changes_problem=self._changes_problem,
                checked=self._checked,
                checked_problem=self._checked_problem,
            )
            self._overview = self._problem = self._changes = self._checked = None
            self._events.clear()
            self._announced = False
        return news

    def ask(
        self, addresses: Collection[PciAddress] | None = None, *, history: bool = False, doctor: bool = False
    ) -> None:
        """Read these functions again, or everything; with `history`, the changes of the journal too; with `doctor`,
        what the checks find."""
        with self._condition:
            self._all = self._all or addresses is None
            self._addresses.update(addresses or ())
            self._history = self._history or history
            self._doctor = self._doctor or doctor
            self._condition.notify_all()

    def ask_history(self) -> None:
        """Read the changes of the journal."""
        self.ask((), history=True)

    def ask_doctor(self) -> None:
        """Run the checks."""
        self.ask((), doctor=True)

    def _tell(self) -> None:
        with self._condition:
            callback = None if self._announced else self._announce
            self._announced = self._announced or callback is not None
        if callback:
            callback()

    def _read(self) -> None:
        self._look(None, without=_SLOW)
        while not self._ended.is_set():
            addresses, history, doctor = self._wanted()
            if self._ended.is_set():
                return
            began = time.monotonic()
            if addresses is None or addresses or not (history or doctor):
                self._look(addresses)
            if history:
                self._look_back()
            if doctor:
                self._check()
            self._ended.wait(max(0.0, began + PAUSE - time.monotonic()))

    def _wanted(self) -> tuple[Collection[PciAddress] | None, bool, bool]:
        """Wait until something is to be read; return which functions, None for all, and whether the changes, and what
        the checks find."""
        usage = list(self._last.usage) if self._last else []
        seconds = _USAGE if usage else _WHOLE
        with self._condition:
            asked = self._condition.wait_for(
                lambda: self._all or self._addresses or self._history or self._doctor or self._ended.is_set(),
                seconds,
            )
            if not asked:
                whole = time.monotonic() - self._whole_at >= _WHOLE - _USAGE / 2
                return None if whole or not usage else (), False, False
            wanted = None if self._all else frozenset(self._addresses)
            history, doctor = self._history, self._doctor
            self._all, self._history, self._doctor = False, False, False
            self._addresses.clear()
        return wanted, history, doctor

    _whole_at = 0.0

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

    def _look_back(self) -> None:
        try:
            changes, problem = self._host.history(most=MOST_CHANGES), ""
        except VfioctlError as error:
            changes, problem = (), error.message
        with self._condition:
            self._changes, self._changes_problem = changes, problem
        self._tell()

    def _check(self) -> None:
        from vfioctl.doctor.model.result import DoctorDocument

        try:
            checked, problem = self._host.doctor.examine(), ""
        except VfioctlError as error:
            checked, problem = DoctorDocument(ok=False, failed=0, unknown=0, results=()), error.message
        with self._condition:
            self._checked, self._checked_problem = checked, problem
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
        self.ask(event.addresses or None, history=event.source is EventSource.LEDGER)
        self._tell()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
