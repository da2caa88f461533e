"""The workers of one session: a fork server, the readers that it forks, and write workers, which are reused.

Thread-safe: each write or single read has a worker to itself, so one that blocks does not delay other threads. Modules
that only a change needs are imported on use, so that listings start quickly.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from vfioctl.errors import HostError
from vfioctl.kernel.worker import job, survey
from vfioctl.kernel.worker.client import ForkServer, handles
from vfioctl.kernel.worker.job import NotStarted, Unreturned
from vfioctl.kernel.worker.names import module_of, name_of
from vfioctl.kernel.worker.survey import Maker, Reader
from vfioctl.signals import deferred

if TYPE_CHECKING:
    from vfioctl.kernel.worker.writer import WriteWorker

T = TypeVar("T")
_MOST_IDLE = 8
_ATTEMPTS = 3


class Workers:
    """Starts workers for calls, reads and writes. `maker`: creates the kernel object in a worker."""

    def __init__(self, maker: Maker) -> None:
        self._maker = maker
        self._server = ForkServer()
        self._lock = threading.Lock()
        self._idle: list[WriteWorker] = []
        handles.add(self)

    # -- jobs --------------------------------------------------------------------------------------

    def call(self, function: Callable[..., object], *args: object, timeout: float, fds: Sequence[int] = ()) -> Any:
        """See `job.call`."""
        return job.call(self._server, function, *args, timeout=timeout, fds=fds)

    def begin(self, function: Callable[..., object], *args: object, timeout: float) -> Callable[[], Any]:
        """See `job.begin`."""
        return job.begin(self._server, function, *args, timeout=timeout)

    def survey(
        self, reader: Reader, subjects: Sequence[str], args: Sequence[object], *, timeout: float, workers: int = 1
    ) -> Iterator[tuple[str, Any]]:
        """See `survey.each`. A single subject is read by a write worker, which is then reused."""
        if len(subjects) != 1:
            server, maker = self._server, self._maker
            return survey.each(server, maker, reader, subjects, args=args, timeout=timeout, workers=workers)
        answers = self._lone(name_of(reader), subjects[0], tuple(args), timeout)
        next(answers)  # starts the read
        return answers

    def _lone(
        self, reader: str, subject: str, args: tuple[object, ...], timeout: float
    ) -> Generator[tuple[str, Any], None, None]:
        ask = partial(self._begun_reading, reader, subject, args)
        worker = ask()
        try:
            yield "", None
            answer = None
            for _ in range(_ATTEMPTS):
                try:
                    (answer,) = worker.answer_reading(timeout)
                    break
                except NotStarted:
                    worker.close()
                    worker = ask()
                except (Unreturned, ChildProcessError) as error:
                    worker.close()
                    answer = error
                    break
            else:
                raise HostError("no child process could be started: the fork server keeps dying")
        except BaseException:
            worker.close()
            raise
        if not isinstance(answer, Exception):
            self._put_back(worker)
        yield subject, answer

    def _begun_reading(self, reader: str, subject: str, args: tuple[object, ...]) -> WriteWorker:
        with deferred():
            worker = self._taken(module_of(reader))
            try:
                worker.begin_reading("read", reader, subject, args)
            except ChildProcessError:
                pass  # reading the answer fails in the same way
            except BaseException:
                worker.close()
                raise
            return worker

    # -- write workers -----------------------------------------------------------------------------

    def write(
        self, path: str, value: str, *, timeout: float, verdicts: Path | None = None, locks: Sequence[int] = ()
    ) -> int:
        """See `WriteWorker.write`."""
        return self._with_worker(lambda w: w.write(path, value, timeout=timeout, verdicts=verdicts, locks=locks))

    def group_flags(self, path: str, *, timeout: float) -> tuple[int, int]:
        """As `files.group_flags`."""
        return self._with_worker(lambda worker: worker.group_flags(path, timeout=timeout))

    def warm(self) -> None:
        """Starts a write worker for a coming change, if none is idle."""
        self._put_back(self._taken())

    def close(self) -> None:
        """Closes all workers. They end at once, or when their writes return."""
        with self._lock:
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.close()
        self._server.close()

    def __del__(self) -> None:
        try:  # noqa: SIM105 - suppress itself is gone when the interpreter ends
            self.close()  # in this order: the server waits for its workers
        except Exception:  # noqa: BLE001, S110 - and so may be what it needs
            pass

    def forget(self) -> None:
        """Called in a fork of the process: the workers belong to the parent."""
        self._lock, self._idle = threading.Lock(), []

    def _with_worker(self, ask: Callable[[WriteWorker], T]) -> T:
        """The answer of a worker. One that does not answer is abandoned, and not reused."""
        with deferred():
            for _ in range(_ATTEMPTS):
                worker = self._taken()
                try:
                    answer = ask(worker)
                except NotStarted:  # nothing was done
                    worker.close()
                    continue
                except BaseException:
                    worker.close()
                    raise
                self._put_back(worker)
                return answer
        raise HostError("no child process could be started: the fork server keeps dying")

    def _taken(self, *modules: str) -> WriteWorker:
        with self._lock:
            while self._idle:
                worker = self._idle.pop()
                if not worker.has_ended:
                    return worker
                worker.close()
        from vfioctl.kernel.worker.writer import WriteWorker

        return WriteWorker(self._server, self._maker, modules=(module_of(self._maker[0]), *modules))

    def _put_back(self, worker: WriteWorker) -> None:
        with self._lock:
            if len(self._idle) < _MOST_IDLE:
                self._idle.append(worker)
                return
        worker.close()
