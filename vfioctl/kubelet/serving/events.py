"""Waits for what may change the health of devices: the kernel's events, errors that NVML reports, writes of the ledger.
Records errors of GPUs in the ledger, so that they outlive the service."""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from vfioctl.core.rollback import now
from vfioctl.errors import VfioctlError
from vfioctl.kernel.feeds import Feed, Lost, Notice
from vfioctl.kubelet.choosing.xid import is_critical
from vfioctl.kubelet.ledger.cordons import CordonRecords, cordons
from vfioctl.kubelet.model.cordon import XID, Cordon

if TYPE_CHECKING:
    from vfioctl.session import Session

_REOPEN = 10.0
"""Seconds before a feed that has ended is opened again."""
_BOUND = "bind"
"""The kernel's event after which the errors of a GPU are over: a driver has it anew."""
Failed = Callable[[str, str, Exception], None]
"""Called with the resource, what was done, and its error."""
_log = logging.getLogger("vfioctl.kubelet")


class Events:
    """The events of one host, for one thread."""

    def __init__(self, session: Session, failed: Failed) -> None:
        self._session, self._failed = session, failed
        self._due: list[Callable[[], object]] = []  # what the ledger is to record
        self._again = 0.0
        self._records = CordonRecords(session.store, session.publish)
        self._kernel, self._errors = _Source(session.kernel.uevents), _Source(Feed)
        self._gpus: Sequence[str] = ()
        self._stamp = session.ledger_stamp()

    def watch_gpus(self, gpus: Sequence[str]) -> None:
        """Report critical errors of these GPUs from now on, of which NVML tells."""
        if gpus != self._gpus:
            self._gpus = gpus
            self._errors.close()
            self._errors = _Source(lambda: self._session.kernel.gpu_errors(gpus))

    def wait(self, seconds: float) -> bool:
        """Wait for an event, but at most so long; return whether there was one."""
        poll = select.poll()
        for source in (self._kernel, self._errors):
            if (descriptor := source.feed.fileno()) >= 0:
                poll.register(descriptor, select.POLLIN)
        poll.poll(seconds * 1000)
        before, self._stamp = self._stamp, self._session.ledger_stamp()
        happened = [before != self._stamp, self._of_kernel(), self._of_gpus(), self._recorded()]
        return any(happened)

    def close(self) -> None:
        """Close what is open."""
        self._kernel.close()
        self._errors.close()

    def _of_kernel(self) -> bool:
        notices = self._kernel.read()
        bound = {notice.subject for notice in notices or () if notice.action == _BOUND}
        self._due += [partial(self._mended, subject) for subject in bound]
        if not bound.isdisjoint(self._gpus):
            self._errors.open_again()
        return notices is None or bool(notices)

    def _of_gpus(self) -> bool:
        critical = [notice for notice in self._errors.read() or () if self._is_critical(notice)]
        self._due += [partial(self._record, notice) for notice in critical]
        return bool(critical)

    def _recorded(self) -> bool:
        """Record what is due; later if the ledger cannot be written now. Return whether something was recorded."""
        count = len(self._due)
        while self._due and time.monotonic() >= self._again:
            try:
                self._due[0]()
            except VfioctlError as error:
                self._failed("", "recording an error of a GPU", error)
                self._again = time.monotonic() + _REOPEN
            else:
                del self._due[0]
        return len(self._due) < count

    def _mended(self, subject: str) -> None:
        """Forget the errors of a GPU, which a driver has anew."""
        if subject in cordons(self._session):
            self._records.remove(subject, XID)

    def _is_critical(self, notice: Notice) -> bool:
        if notice.action == "xid":
            _log.warning("XID %s of %s", notice.detail, notice.subject or "a GPU that NVML does not name")
            return notice.detail.isdecimal() and is_critical(int(notice.detail))
        _log.warning("NVML reports no errors of %s: %s", notice.subject, notice.detail)
        return False

    def _record(self, notice: Notice) -> None:
        why = f"XID {notice.detail}, which NVML reported"
        for address in _named(notice, self._gpus):
            self._records.add(Cordon(address, XID, why, now(), ""), self._session.boot_id)


def _named(notice: Notice, gpus: Iterable[str]) -> Iterable[str]:
    """Return the GPU of an error; all of them if NVML does not say which it is."""
    return [notice.subject] if notice.subject else gpus


class _Source:
    """A feed that is opened again after it has ended."""

    def __init__(self, make: Callable[[], Feed]) -> None:
        self._make, self.feed = make, Feed()
        self._due: float | None = 0.0  # when to open it; None while it is open

    def read(self) -> Sequence[Notice] | None:
        """Return what was notified; None if something may have been missed."""
        try:
            if self._due is not None and time.monotonic() >= self._due:
                self._due = time.monotonic() + _REOPEN
                self.feed = self._make()
                self._due = None
            return self.feed.read()
        except Lost as lost:
            if lost.ended:
                _log.warning("%s", lost)
                self.close()
                self._due = time.monotonic() + _REOPEN
            return None

    def open_again(self) -> None:
        """Open it anew at the next reading."""
        self.close()
        self._due = 0.0

    def close(self) -> None:
        feed, self.feed = self.feed, Feed()
        feed.close()
