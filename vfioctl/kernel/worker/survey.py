"""Reads many subjects in workers. A worker whose read blocks is abandoned, so a read costs at most its timeout."""

from __future__ import annotations

import math
import select
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any

from vfioctl.errors import HostError
from vfioctl.kernel.worker.job import ATTEMPTS, KEEPS_DYING, START_TIMEOUT, Job
from vfioctl.kernel.worker.stall import BUSY_TIMEOUT, Stall, waited_for_processor
from vfioctl.kernel.worker.wire import module_of, name_of
from vfioctl.kernel.worker.workers import Reader, Workers
from vfioctl.signals import deferred

_SHORTEST_PAUSE = 0.02


def each(
    pool: Workers,
    reader: Reader,
    subjects: Sequence[str],
    *,
    args: Sequence[object] = (),
    timeout: float,
    total: float | None = None,
    workers: int = 1,
) -> Iterator[tuple[str, Any]]:
    """Yields `(subject, result)` in order; the result is an exception if the subject could not be read.

    The workers start at once. One that makes no progress for `timeout` seconds is abandoned; the result of its subject
    is Unreturned, and another worker continues with the next subject. After `total` seconds of waiting, all workers are
    abandoned, and the result of each remaining subject is OutOfTime."""
    size = -(-len(subjects) // workers) or 1
    name = name_of(reader)
    shards: list[_Shard] = []
    collected = _collected(shards, timeout, math.inf if total is None else total)
    next(collected)  # started, so that its cleanup always runs
    try:
        with deferred():
            parts = (subjects[at : at + size] for at in range(0, len(subjects), size))
            shards.extend(_Shard(pool, name, args, part, timeout) for part in parts)
    except BaseException:
        collected.close()
        raise
    return collected


def _collected(shards: Sequence[_Shard], timeout: float, total: float) -> Generator[tuple[str, Any], None, None]:
    try:
        yield "", None
        began = time.monotonic()
        while unfinished := [shard for shard in shards if not shard.finished]:
            poll = select.poll()
            for shard in unfinished:
                poll.register(shard.answers, select.POLLIN)
            pause = min(timeout / 4, max(began + total - time.monotonic(), _SHORTEST_PAUSE))
            ready = {fd for fd, _ in poll.poll(pause * 1000)}
            for shard in unfinished:
                with deferred():  # may start a worker, which must not leak
                    shard.advance(can_read=shard.answers in ready)
            if time.monotonic() > began + total + _kept_waiting(shard for shard in unfinished if not shard.finished):
                for shard in unfinished:
                    shard.stop(OutOfTime(f"the scan took longer than {total:g} s"))
    except BaseException:
        for shard in shards:
            shard.abandon()
        raise
    for shard in shards:
        yield from zip(shard.subjects, shard.results, strict=True)


def _kept_waiting(shards: Iterable[_Shard]) -> float:
    """The seconds for which the workers waited for a processor, at most BUSY_TIMEOUT."""
    return min(max((shard.kept_waiting for shard in shards), default=0.0), BUSY_TIMEOUT)


class OutOfTime(Exception):
    """The subject was not read, because the whole survey took too long."""


class _Shard:
    """Some of the subjects, and the worker that reads them."""

    def __init__(
        self, pool: Workers, reader: str, args: Sequence[object], subjects: Sequence[str], timeout: float
    ) -> None:
        self.subjects, self._pool, self._reader, self._args = subjects, pool, reader, args
        self.results: list[object] = []
        self._lost: dict[str, Exception] = {}
        self._attempts = 0
        self._stall, self._waited = Stall(timeout), 0.0
        self._start()

    @property
    def answers(self) -> int:
        return self._worker.job.answers

    @property
    def kept_waiting(self) -> float:
        """Seconds for which this worker has waited for a processor."""
        return waited_for_processor(self._job.pid) - self._waited

    @property
    def finished(self) -> bool:
        return len(self.results) == len(self.subjects)

    @property
    def _job(self) -> Job:
        return self._worker.job

    @property
    def _progress(self) -> tuple[int, int]:
        return self._job.page.at, self._job.page.moves

    def _start(self) -> None:
        self._first, self._seen = len(self.results), (0, 0)
        rest = self.subjects[self._first :]
        if all(subject in self._lost for subject in rest):
            self.results += [self._lost[subject] for subject in rest]
            return
        for _ in range(ATTEMPTS):
            self._worker = self._pool.take(module_of(self._reader))
            try:
                self._worker.begin_reading(self._reader, self._args, rest, list(self._lost))
            except ChildProcessError:  # it died while it was idle, or never began
                self._worker.close()
            except BaseException:
                self._worker.close()
                raise
            else:
                self._stall.begin(pid := self._job.pid)
                self._waited = waited_for_processor(pid) if pid else 0.0
                return
        raise HostError(KEEPS_DYING)

    def advance(self, *, can_read: bool) -> None:
        """Reads available results; replaces a worker that has ended or makes no progress."""
        if self._progressed(can_read=can_read):
            return
        if not self._stall.pid and self._job.pid:
            self._stall.begin(self._job.pid)
        is_over = self._stall.is_over() if self._stall.pid else self._stall.passed > START_TIMEOUT
        if is_over and not self._progressed(can_read=True):  # while this process waited, the worker may have answered
            self._lose(self._stall.error())
            self._worker.close()
            self._start()

    def _progressed(self, *, can_read: bool) -> bool:
        batches = self._job.receive(0) if can_read else []
        if batches is None:
            self._ended()
        elif batches or self._progress != self._seen:
            self._seen = self._progress
            self._stall.begin(self._job.pid)
            self._take(result for batch in batches for result in batch)
        else:
            return False
        return True

    def _ended(self) -> None:
        if self._job.pid:
            self._lose(ChildProcessError("the process that read it died"))
        elif (attempts := self._attempts) == ATTEMPTS:
            raise HostError(KEEPS_DYING)
        else:  # the server died before it forked
            self._attempts = attempts + 1
        self._worker.close()
        self._start()

    def abandon(self) -> None:
        """Kills the worker without waiting for it, unless it has finished."""
        if not self.finished:
            self._worker.close()

    def stop(self, why: Exception) -> None:
        """Gives up the subjects that have no result, unless it has finished."""
        if not self.finished:
            self._worker.close()
            self.results += [self._lost.get(subject, why) for subject in self.subjects[len(self.results) :]]

    def _take(self, results: Iterator[object]) -> None:
        for result in results:
            self.results.append(self._lost.get(self.subjects[len(self.results)], result))
        if self.finished:
            self._worker.end_reading()
            self._pool.put_back(self._worker)

    def _lose(self, why: Exception) -> None:
        rest = self.subjects[self._first + self._job.page.at :]
        if rest[0] in self._lost and isinstance(why, ChildProcessError):
            raise RuntimeError(f"workers die before they read anything: {why}")
        # A subject that was lost before is skipped at once: the worker was delayed by something else, such as swapping.
        self._lost[next((subject for subject in rest if subject not in self._lost), rest[0])] = why
