"""What the running service tells of itself: registrations and the last failures, in a file that everybody may read."""

from __future__ import annotations

import logging
import os
import threading
from contextlib import suppress
from pathlib import Path

from vfioctl.core.rollback import now
from vfioctl.errors import VfioctlError
from vfioctl.kernel.files import write_into
from vfioctl.kernel.trusted import PUBLIC_DIRECTORY, PUBLIC_FILE, opened_directory
from vfioctl.kubelet.model.status import Failure, Registration, Running
from vfioctl.kubelet.reading.running import FILE

_MOST = 20
"""Failures that are kept."""
_LONGEST = 500
"""Characters of a failure."""
_UNCOUNTED = "the kubelet does not count its devices"
_log = logging.getLogger("vfioctl.kubelet")


class State:
    """The state of a service. Its methods may be called from any thread. The file is left as it is if it cannot be
    written: the service goes on."""

    def __init__(self, directory: str, ledger: Path, resources: list[str]) -> None:
        self._file = Path(directory, FILE)
        self._lock, self._is_over = threading.Lock(), False
        self.running = Running(os.getpid(), now(), str(ledger), tuple(map(Registration, resources)))

    def registered(self, resource: str, problem: str = "") -> None:
        """Record that the kubelet knows a resource, or why it does not."""
        with self._lock:
            new = Registration(resource, not problem, now(), problem[:_LONGEST])
            others = (new if one.resource == resource else one for one in self.running.registrations)
            self.running = self.running._replace(registrations=tuple(others))
            self._write()

    def registration(self, resource: str) -> Registration:
        """Return whether the kubelet knows a resource."""
        return next(one for one in self.running.registrations if one.resource == resource)

    def counted(self, resource: str, *, known: bool) -> None:
        """Record that a registered resource has devices, and whether the kubelet counts them."""
        registration = self.registration(resource)
        if registration.registered and not known:
            self.registered(resource, _UNCOUNTED)
        elif registration.problem == _UNCOUNTED and known:
            self.registered(resource)

    def failed(self, resource: str, what: str, error: Exception) -> None:
        """Record a failure, and log it."""
        text = error.message if isinstance(error, VfioctlError) else str(error)
        kind = type(error).__name__
        _log.warning("%s failed: %s", what, text, extra={"resource": resource, "error": kind})
        with self._lock:
            failure = Failure(now(), resource, what, text[:_LONGEST])
            self.running = self.running._replace(failures=(failure, *self.running.failures)[:_MOST])
            self._write()

    def pods(self, problem: str) -> None:
        """Record whether the kubelet told of its pods."""
        if problem == self.running.pods_problem:
            return
        if problem:
            _log.warning("the kubelet does not tell which pod has which device: %s", problem)
        with self._lock:
            self.running = self.running._replace(pods_problem=problem[:_LONGEST])
            self._write()

    def write(self) -> None:
        """Write the file, as when the service begins."""
        with self._lock:
            self._write()

    def remove(self) -> None:
        """Remove the file for good, as when the service ends: a thread may be late."""
        with self._lock, suppress(OSError):
            self._is_over = True
            self._file.unlink()

    def _write(self) -> None:
        if self._is_over:
            return
        with (
            suppress(OSError, VfioctlError),
            opened_directory(str(self._file.parent), make=PUBLIC_DIRECTORY) as directory,
        ):
            write_into(directory, self._file.name, self.running.text.encode(), mode=PUBLIC_FILE)
