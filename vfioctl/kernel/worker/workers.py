"""The workers of a session, which read and write files of the kernel, one request after another. Each write and each
part of a survey has a worker to itself, so one that blocks does not delay other threads. A worker is never killed while
it writes, which may block in the kernel without a timeout. Then it is abandoned: when the write returns after all, the
worker records the result (see `leave_verdict`) and ends. A worker that reads is killed instead. A request to write
comes with copies of the lock descriptors: the locks are held until the write ends, even if the caller has ended."""

from __future__ import annotations

import _socket
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vfioctl.errors import HostError
from vfioctl.kernel import files
from vfioctl.kernel.worker.client import ForkServer, handles
from vfioctl.kernel.worker.job import ATTEMPTS, KEEPS_DYING, Job, NotStarted
from vfioctl.kernel.worker.processes import leave_verdict, report_progress_to
from vfioctl.kernel.worker.server import Answers
from vfioctl.kernel.worker.stall import Stall
from vfioctl.kernel.worker.wire import Frames, framed, module_of, named, receive_message
from vfioctl.signals import deferred

BATCH = 64
_MOST_IDLE = 8

Maker = tuple[str, dict[str, Any]]
"""The name and the arguments, by name, of what creates the kernel object in a worker."""
Reader = Callable[..., Callable[[str], Any]]
"""A module-level function or class. `reader(kernel, *args)` returns the function that reads one subject."""


class Worker:
    """A worker, as its caller uses it. Not thread-safe: `Workers` gives it to one thread at a time. Every request
    raises ChildProcessError when the worker has died; `write` raises Unreturned after its timeout."""

    def __init__(self, server: ForkServer, maker: Maker, *, modules: Sequence[str] = ()) -> None:
        function = "vfioctl.kernel.worker.workers:serve"
        self.job = Job(server, function, (maker,), modules=modules, reading=False, two_way=True)

    def write(
        self, path: str, value: str, *, timeout: float, verdicts: Path | None = None, locks: Sequence[int] = ()
    ) -> int:
        """Writes `value` to `path`; returns 0 or the errno. SIGINT is deferred until then."""
        with deferred():
            self.job.page.writing = True
            self.job.ask(framed(("write", path, value, str(verdicts or ""))), locks)
            stall = Stall(timeout)
            if self.job.pid:  # a new worker has yet to start
                stall.begin(self.job.pid)
            errno = int(self.job.answer(stall))
            self.job.page.writing = False
        return errno

    def begin_reading(
        self, reader: str, args: Sequence[object], subjects: Sequence[str], lost: Sequence[str] = ()
    ) -> None:
        """Requests the results of the subjects, which arrive in batches of `job`; None for the subjects in `lost`.
        `job.page.at` is the index of the subject that is being read. The worker may be killed until `end_reading`."""
        self.job.page.at = 0
        self.job.page.reading = True
        self.job.ask(framed(("read", reader, tuple(args), list(subjects), list(lost))))

    def end_reading(self) -> None:
        """Call it when all results have arrived."""
        self.job.page.reading = False

    def close(self) -> None:
        """Ends the worker: at once, or when its write returns. A worker that reads is killed."""
        if self.job.answers >= 0 and self.job.page.reading:
            self.job.abandon()
        else:
            self.job.close()


class Workers:
    """The workers of one fork server. They are reused, because forking takes longer than most reads. Thread-safe."""

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


def serve(answers: Answers, maker: Maker) -> None:
    """Runs in the worker: handles requests until the caller closes the stream."""
    _Server(answers, maker).serve()


class _Server:
    def __init__(self, answers: Answers, maker: Maker) -> None:
        self._answers, self._maker = answers, maker
        self._kernel: object = None
        self._last: tuple[str, int] | None = None
        """The verdict file and the errno of the last write, in case the caller does not read the answer."""

    def serve(self) -> None:
        requests, frames, locks = _socket.socket(fileno=self._answers.fds[0]), Frames(), list[int]()
        while True:
            chunk, fds = receive_message(requests, 1 << 16)
            if not chunk:
                return self._leave_verdict() if self._answers.page.writing else None  # the answer was not read
            locks += fds
            for request in frames.add(chunk):
                self._do(*request)
                while locks:
                    os.close(locks.pop())

    def _do(self, verb: str, *details: Any) -> None:
        self._last = None
        if verb == "write":
            self._write(*details)
        else:
            self._read(*details)

    def _write(self, path: str, value: str, verdicts: str) -> None:
        errno = files.write_once(path, value)
        self._last = verdicts, errno
        try:
            self._answers.send(errno)
        except OSError:  # abandoned: the answer is not read
            self._leave_verdict()

    def _read(self, reader: str, args: Sequence[object], subjects: Sequence[str], lost: Sequence[str]) -> None:
        function, arguments = self._maker
        self._kernel = self._kernel or named(function)(**arguments)
        report_progress_to(self._answers.page)
        send_results(self._answers, named(reader)(self._kernel, *args), subjects, lost)

    def _leave_verdict(self) -> None:
        if self._last and self._last[0]:
            leave_verdict(*self._last)
            self._last = None


def send_results(
    answers: Answers, read_one: Callable[[str], object], subjects: Sequence[str], lost: Sequence[str]
) -> None:
    """Sends the results of the subjects in batches; None for those in `lost`."""
    batch: list[object] = []
    for number, subject in enumerate(subjects):
        answers.page.at = number
        batch.append(None if subject in lost else read_one(subject))
        if len(batch) == BATCH or number == len(subjects) - 1:
            answers.send(batch)
            batch = []
