"""Reads many subjects, each of which may block for ever, in children that can be left behind with it."""

from __future__ import annotations

import mmap
import select
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any

from vfioctl.kernel.worker.child import SIZE_BYTES, Child, Unreturned
from vfioctl.signals import held_back

_BATCH = 64


def each(
    work: Callable[[str], object], subjects: Sequence[str], *, timeout: float, children: int = 1
) -> Iterator[tuple[str, Any]]:
    """`(subject, work(subject))` for each, in order; an exception in place of a result that never came.

    The children are at work from now on. One that makes no progress for `patience` seconds is left behind with its
    subject (Unreturned), and another goes on after it.
    """
    size = -(-len(subjects) // children) or 1
    shards: list[_Shard] = []
    collected = _collected(shards, timeout)
    next(collected)  # begun, it cleans up however it ends
    try:
        with held_back():
            shards.extend(_Shard(work, subjects[at : at + size]) for at in range(0, len(subjects), size))
    except BaseException:
        collected.close()
        raise
    return collected


def _collected(shards: Sequence[_Shard], timeout: float) -> Generator[tuple[str, Any], None, None]:
    try:
        yield "", None
        while unfinished := [shard for shard in shards if not shard.finished]:
            ready = select.select([shard.pipe for shard in unfinished], [], [], timeout / 4)[0]
            for shard in unfinished:
                with held_back():  # it may start a child, which must not be lost
                    shard.advance(timeout, can_read=shard.pipe in ready)
    except BaseException:
        _abandon(shards)
        raise
    for shard in shards:
        yield from zip(shard.subjects, shard.results, strict=True)


def _abandon(shards: Iterable[_Shard]) -> None:
    for shard in shards:
        shard.abandon()


class _Shard:
    """Some of the subjects, and the child that is at them."""

    def __init__(self, work: Callable[[str], object], subjects: Sequence[str]) -> None:
        self.subjects, self._work = subjects, work
        self.results: list[object] = []
        self._lost: dict[str, Exception] = {}
        # Shared with the child: which subject it is at. A child that blocks can no longer say so itself.
        self._at = mmap.mmap(-1, SIZE_BYTES)
        self._start()

    @property
    def pipe(self) -> int:
        return self._child.results

    @property
    def finished(self) -> bool:
        return len(self.results) == len(self.subjects)

    def _start(self) -> None:
        self._first = len(self.results)
        self._at[:] = self._seen = bytes(SIZE_BYTES)
        self._moved = time.monotonic()
        self._child = Child(self._go_through)

    def _go_through(self, send: Callable[[object], None]) -> None:
        batch: list[object] = []
        for number, subject in enumerate(self.subjects[self._first :]):
            self._at[:] = number.to_bytes(SIZE_BYTES, "little")
            batch.append(None if subject in self._lost else self._work(subject))
            if len(batch) == _BATCH:
                send(batch)
                batch = []
        send(batch)

    def advance(self, timeout: float, *, can_read: bool) -> None:
        """Takes what has come; leaves a child behind that has ended or makes no progress."""
        batches = self._child.receive(0) if can_read else []
        if batches is None:
            self._lose(ChildProcessError("the child that read it died"))
            self._child.close()
            self._start()
        elif batches or self._at[:] != self._seen:
            self._seen, self._moved = self._at[:], time.monotonic()
            self._take(result for batch in batches for result in batch)
        elif time.monotonic() - self._moved > timeout:
            self._lose(Unreturned(self._child, timeout))
            self._child.abandon()
            self._start()

    def abandon(self) -> None:
        """Leaves the child to its fate, unless it has ended."""
        if not self.finished:
            self._child.abandon()

    def _take(self, results: Iterator[object]) -> None:
        for result in results:
            self.results.append(self._lost.get(self.subjects[len(self.results)], result))
        if self.finished:
            self._child.abandon()  # all it had to say is here; how long it takes to end is its own affair

    def _lose(self, why: Exception) -> None:
        rest = self.subjects[self._first + int.from_bytes(self._at[:], "little") :]
        if rest[0] in self._lost and isinstance(why, ChildProcessError):
            raise RuntimeError(f"children die without work: {why}")
        # One that was lost before is passed over at once: a child still there was kept from its work, by swapping say.
        self._lost[next((subject for subject in rest if subject not in self._lost), rest[0])] = why
