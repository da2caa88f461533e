"""Keeps an overview up to date with the host's events. May not write to the host."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from vfioctl.overview.model.event import INTERVAL, LOST, EventSource, HostEvent, Stop
from vfioctl.overview.model.overview import Overview, Part
from vfioctl.overview.reading.look import look
from vfioctl.overview.reading.refresh import refresh
from vfioctl.overview.watch.watch import watching

if TYPE_CHECKING:
    from vfioctl.session import Session

Following = Iterator[tuple[Overview, tuple[HostEvent, ...]]]


def follow(session: Session, *, stop: Stop, interval: float, without: Collection[Part]) -> Following:
    """See `OverviewApi.follow`. The events are followed before the first look, so that none is missed."""
    with watching(session, stop=stop, interval=interval) as portions:
        overview = look(session, without)
        yield overview, ()
        for events in portions:
            overview = updated(session, overview, events)
            yield overview, events


def updated(session: Session, last: Overview, events: Collection[HostEvent]) -> Overview:
    """Return `last` as the host is after these events."""
    lost = {event.subject for event in events if event.source is EventSource.WATCH and event.action == LOST}
    if lost - {EventSource.LIBVIRT}:
        return look(session, last.without)
    addresses = dict.fromkeys(address for event in events for address in event.addresses)
    whole = set[Part]()
    if any(event.action == INTERVAL for event in events):
        whole |= {Part.HOLDERS, Part.USAGE}
    if lost or any(event.source is EventSource.LIBVIRT for event in events):
        whole |= {Part.DOMAINS, Part.HOLDERS}
    return refresh(session, last, addresses, whole)
