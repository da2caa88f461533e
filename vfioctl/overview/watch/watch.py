"""Follows all sources of one host at once, and yields their events. Starts no thread; may not write to the host."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Protocol

from vfioctl.core.rollback import now
from vfioctl.errors import VfioctlError
from vfioctl.overview.model.event import INTERVAL, EventSource, HostEvent, Stop
from vfioctl.overview.watch.coalescing import Coalescing
from vfioctl.overview.watch.sources import FeedSource, LedgerSource

if TYPE_CHECKING:
    from vfioctl.session import Session

Portions = Iterator[tuple[HostEvent, ...]]
_TICK = 0.1
"""Seconds between looks at files, and at `stop`."""


class Source(Protocol):
    """A source of events."""

    def fileno(self) -> int: ...
    def events(self) -> Iterator[HostEvent]: ...
    def close(self) -> None: ...


@contextmanager
def watching(session: Session, *, stop: Stop, interval: float) -> Iterator[Portions]:
    """Follow the sources from the beginning of the block on. The value yields events, those of one moment together."""
    sources = _sources(session)
    try:
        first = tuple(event for source in sources for event in source.events())  # this opens them
        yield _follow(sources, first, stop=stop, interval=interval)
    finally:
        for source in sources:
            source.close()


def _sources(session: Session) -> Sequence[Source]:
    kernel = session.kernel
    kernel_events = FeedSource(EventSource.KERNEL, kernel.uevents)
    try:
        uri = str(session.settings("domain").connect)
    except VfioctlError:  # a configuration that cannot be used is reported by what reads the host
        return kernel_events, LedgerSource(session)
    return kernel_events, LedgerSource(session), FeedSource(EventSource.LIBVIRT, partial(kernel.domain_events, uri))


def _follow(sources: Sequence[Source], first: Sequence[HostEvent], *, stop: Stop, interval: float) -> Portions:
    gathered, moment = Coalescing(), time.monotonic()
    again = moment + interval
    for event in first:
        gathered.add(event, now=moment)
    while not stop():
        moment = time.monotonic()
        for source in sources:
            for event in source.events():
                gathered.add(event, now=moment)
        events = gathered.due(now=moment)
        if moment >= again:
            again = moment + interval
            events = (*events, HostEvent(now(), EventSource.WATCH, INTERVAL, ""))
        if events:
            yield events
        _wait([source.fileno() for source in sources], _TICK)


def _wait(descriptors: Sequence[int], seconds: float) -> None:
    """Wait until one is readable, but at least a tenth of the time: a storm of events is read in a few portions."""
    poll = select.poll()
    for descriptor in descriptors:
        if descriptor >= 0:
            poll.register(descriptor, select.POLLIN)
    if poll.poll(seconds * 1000):
        time.sleep(seconds / 10)
