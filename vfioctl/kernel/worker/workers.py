"""The workers of one session, which serve one request after another. Thread-safe.

Each write and each part of a survey has a worker to itself, so one that blocks does not delay other threads.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from vfioctl.errors import HostError
from vfioctl.kernel.worker.client import ForkServer, handles
from vfioctl.kernel.worker.job import ATTEMPTS, KEEPS_DYING, NotStarted
from vfioctl.kernel.worker.wire import module_of
from vfioctl.kernel.worker.worker import Maker, Worker
from vfioctl.signals import deferred

_MOST_IDLE = 8


class Workers:
    """The workers of one fork server. They are reused, because forking takes longer than most reads.

    `maker`: creates the kernel object in a worker.
    """

    def __init__(self, server: ForkServer, maker: Maker) -> None:
        self.server, self._maker = server, maker
        self._lock = threading.Lock()
        self._idle: list[Worker] = []
        handles.add(self)

    def take(self, *modules: str) -> Worker:
        """Returns an idle worker, otherwise a new one. `modules`: what the fork server imports for a new one."""
        with self._lock:
            while self._idle:
                worker = self._idle.pop()
                if not worker.job.has_ended:
                    return worker
                worker.close()
        return Worker(self.server, self._maker, modules=(module_of(self._maker[0]), *modules))

    def put_back(self, worker: Worker) -> None:
        """Keeps a worker that has answered."""
        with self._lock:
            if len(self._idle) < _MOST_IDLE:
                self._idle.append(worker)
                return
        worker.close()

    def write(
        self, path: str, value: str, *, timeout: float, verdicts: Path | None = None, locks: Sequence[int] = ()
    ) -> int:
        """See `Worker.write`. A worker that does not answer is abandoned, and not reused."""
        with deferred():
            for _ in range(ATTEMPTS):
                worker = self.take()
                try:
                    errno = worker.write(path, value, timeout=timeout, verdicts=verdicts, locks=locks)
                except NotStarted:  # nothing was done
                    worker.close()
                    continue
                except BaseException:
                    worker.close()
                    raise
                self.put_back(worker)
                return errno
        raise HostError(KEEPS_DYING)

    def warm(self) -> None:
        """Starts a worker for a coming change, if none is idle."""
        self.put_back(self.take())

    def close(self) -> None:
        """Ends the idle workers and the server: at once, or when the writes of its workers return."""
        self._end_idle()  # first: the server waits for its workers
        self.server.close()

    def _end_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.close()

    def forget(self) -> None:
        """Called in a fork of the process: the workers belong to the parent."""
        self._lock, self._idle = threading.Lock(), []

    def __del__(self) -> None:
        """What has begun goes on: it holds the server, which ends with its last holder."""
        try:  # noqa: SIM105 - suppress itself is gone when the interpreter ends
            self._end_idle()
        except Exception:  # noqa: BLE001, S110 - and so may be what it needs
            pass
