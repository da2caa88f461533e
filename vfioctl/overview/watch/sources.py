"""The sources of events: feeds of the kernel and of libvirt, which are opened again when they end, and the ledger."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from vfioctl.claims.api import ClaimsApi
from vfioctl.core.rollback import now
from vfioctl.errors import VfioctlError
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.feeds import Feed, Lost
from vfioctl.kernel.protocol import PCI_ADDRESS
from vfioctl.overview.model.event import LOST, EventSource, HostEvent

if TYPE_CHECKING:
    from vfioctl.core.published import BeingChanged
    from vfioctl.session import Session

_RETRY_SECONDS = 5.0


class FeedSource:
    """The events of one feed. One that ends is opened again, and that is reported once, not at each attempt."""

    def __init__(self, source: EventSource, make: Callable[[], Feed]) -> None:
        self._source, self._make = source, make
        self._feed: Feed | None = None
        self._retry, self._told = 0.0, ""

    def fileno(self) -> int:
        """Return the descriptor to wait for; -1 for none."""
        return self._feed.fileno() if self._feed else -1

    def events(self) -> Iterator[HostEvent]:
        """Yield what happened since the last call."""
        try:
            feed = self._opened()
            notices = feed.read() if feed else []
        except Lost as lost:
            if lost.ended:
                self.close()
                self._retry = time.monotonic() + _RETRY_SECONDS
            if not lost.ended or self._told != str(lost):
                yield HostEvent(now(), EventSource.WATCH, LOST, self._source, detail=str(lost))
            self._told = str(lost) if lost.ended else self._told
            return
        for notice in notices:
            self._told = ""
            addresses = tuple(map(PciAddress, notice.addresses))
            yield HostEvent(now(), self._source, notice.action, notice.subject, addresses, notice.detail)

    def _opened(self) -> Feed | None:
        if self._feed is None and time.monotonic() >= self._retry:
            self._feed = self._make()
        return self._feed

    def close(self) -> None:
        """Close the feed."""
        feed, self._feed = self._feed, None
        if feed:
            feed.close()


class LedgerSource:
    """Claims and changes, as the ledger has them; for users who may not read it, as root publishes them."""

    def __init__(self, session: Session) -> None:
        self._session, self._claims = session, ClaimsApi(session)
        self._stamp = session.ledger_stamp()
        self._last, self._open = self._last_event(), self._changes()

    def fileno(self) -> int:
        """Return -1: a file cannot be waited for."""
        return -1

    def events(self) -> Iterator[HostEvent]:
        """Yield the events of claims, and the beginning and end of changes, since the last call."""
        stamp = self._session.ledger_stamp()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        events = [*self._of_changes(), *self._of_claims()]
        yield from events or [HostEvent(now(), EventSource.LEDGER, "change", "", detail="it was written")]

    def close(self) -> None:
        """Do nothing: no file is open between two calls."""

    def _of_claims(self) -> Iterator[HostEvent]:
        try:
            for event in self._claims.ledger.events(after=self._last):
                self._last = event.number
                addresses = sorted(self._claims.claim(event.claim).gpu_addresses)
                yield _event(event.state, event.claim, addresses, event.owner)
        except VfioctlError:  # an ordinary user, or a damaged ledger, which the overview reports
            self._last = 0

    def _last_event(self) -> int:
        try:
            return self._claims.ledger.last_event()
        except VfioctlError:
            return 0

    def _of_changes(self) -> Iterator[HostEvent]:
        before, self._open = self._open, self._changes()
        for action, changes, others in (("begin", self._open, before), ("end", before, self._open)):
            for number in changes.keys() - others.keys():
                yield _event(action, f"change {number}", changes[number].subjects)

    def _changes(self) -> dict[int, BeingChanged]:
        none: tuple[BeingChanged, ...] = ()
        changes, _ = self._session.from_ledger(self._session.being_changed, none)
        return {change.number: change for change in changes}


def _event(action: str, subject: str, devices: Iterable[str], detail: str = "") -> HostEvent:
    addresses = tuple(PciAddress(device) for device in devices if PCI_ADDRESS.fullmatch(device))
    return HostEvent(now(), EventSource.LEDGER, action, subject, addresses, detail)
