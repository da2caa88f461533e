"""The workers of one session: a fork server, and the workers that it forks. Thread-safe.

Each write and each part of a survey has a worker to itself, so one that blocks does not delay other threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from vfioctl.errors import HostError
from vfioctl.kernel.worker import job, survey
from vfioctl.kernel.worker.client import ForkServer
from vfioctl.kernel.worker.job import ATTEMPTS, Gathered, NotStarted
from vfioctl.kernel.worker.worker import Maker, Pool, Reader, Worker
from vfioctl.signals import deferred

T = TypeVar("T")


class Workers:
    """Starts workers for calls, reads and writes. `maker`: creates the kernel object in a worker."""

    def __init__(self, maker: Maker) -> None:
        self._server = ForkServer()
        self._pool = Pool(self._server, maker)

    def call(self, function: Callable[..., object], *args: object, timeout: float, fds: Sequence[int] = ()) -> Any:
        """See `job.call`."""
        return job.call(self._server, function, *args, timeout=timeout, fds=fds)

    def begin(self, function: Callable[..., object], *args: object, timeout: float) -> Callable[[], Any]:
        """See `job.begin`."""
        return partial(self._waited, job.begin(self._server, function, *args, timeout=timeout))

    def begin_each(
        self, function: Callable[..., Iterable[object]], *args: object, timeout: float
    ) -> Callable[[], Gathered]:
        """See `job.begin_each`."""
        return partial(self._waited, job.begin_each(self._server, function, *args, timeout=timeout))

    def _waited(self, wait: Callable[[], T]) -> T:
        """What has begun holds this object until it has ended: closing it would kill the worker."""
        return wait()

    def survey(
        self,
        reader: Reader,
        subjects: Sequence[str],
        args: Sequence[object],
        *,
        timeout: float,
        total: float | None = None,
        workers: int = 1,
    ) -> Iterator[tuple[str, Any]]:
        """See `survey.each`."""
        return self._kept(
            survey.each(self._pool, reader, subjects, args=args, timeout=timeout, total=total, workers=workers)
        )

    def _kept(self, answers: Iterator[T]) -> Iterator[T]:
        """The same answers; see `_waited`."""
        yield from answers

    def write(
        self, path: str, value: str, *, timeout: float, verdicts: Path | None = None, locks: Sequence[int] = ()
    ) -> int:
        """See `Worker.write`."""
        return self._with_worker(lambda w: w.write(path, value, timeout=timeout, verdicts=verdicts, locks=locks))

    def group_flags(self, path: str, *, timeout: float) -> tuple[int, int]:
        """As `files.group_flags`."""
        return self._with_worker(lambda worker: worker.group_flags(path, timeout=timeout))

    def warm(self) -> None:
        """Starts a worker for a coming change, if none is idle."""
        self._pool.put_back(self._pool.take())

    def close(self) -> None:
        """Closes all workers. They end at once, or when their writes return."""
        self._pool.close()  # first: the server waits for its workers
        self._server.close()

    def __del__(self) -> None:
        try:  # noqa: SIM105 - suppress itself is gone when the interpreter ends
            self.close()
        except Exception:  # noqa: BLE001, S110 - and so may be what it needs
            pass

    def _with_worker(self, ask: Callable[[Worker], T]) -> T:
        """The answer of a worker. One that does not answer is abandoned, and not reused."""
        with deferred():
            for _ in range(ATTEMPTS):
                worker = self._pool.take()
                try:
                    answer = ask(worker)
                except NotStarted:  # nothing was done
                    worker.close()
                    continue
                except BaseException:
                    worker.close()
                    raise
                self._pool.put_back(worker)
                return answer
        raise HostError(job.KEEPS_DYING)
