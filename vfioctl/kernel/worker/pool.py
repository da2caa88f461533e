"""The workers of a session that are reused, because forking takes longer than most reads and writes. Thread-safe."""

from __future__ import annotations

import threading

from vfioctl.kernel.worker.client import ForkServer, handles
from vfioctl.kernel.worker.names import module_of
from vfioctl.kernel.worker.worker import Maker, Worker

_MOST_IDLE = 8


class Pool:
    """Workers of one fork server. `maker`: creates the kernel object in a worker."""

    def __init__(self, server: ForkServer, maker: Maker) -> None:
        self._server, self._maker = server, maker
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
        return Worker(self._server, self._maker, modules=(module_of(self._maker[0]), *modules))

    def put_back(self, worker: Worker) -> None:
        """Keeps a worker that has answered."""
        with self._lock:
            if len(self._idle) < _MOST_IDLE:
                self._idle.append(worker)
                return
        worker.close()

    def close(self) -> None:
        """Ends the idle workers."""
        with self._lock:
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.close()

    def forget(self) -> None:
        """Called in a fork of the process: the workers belong to the parent."""
        self._lock, self._idle = threading.Lock(), []
