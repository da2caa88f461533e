"""Does what may block for ever in a forked child that the caller can outlive.

A write to sysfs, a read under the device lock and any call of NVML can sleep in state D, where no signal reaches them.
Here such work runs in a child that holds nothing of its parent's: no terminal, no pipe, no lock but those it is told to
keep. May do nothing else to the machine.
"""

from __future__ import annotations

import fcntl
import marshal
import mmap
import os
import select
import signal
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn, cast

from vfioctl.errors import HostError
from vfioctl.interrupts import held_back

_SIZE_BYTES = 8
_BATCH = 64
_abandoned: list[int] = []


class Child:
    """A forked child and the pipe that its results come through, each as one marshalled value."""

    def __init__(self, work: Callable[[Callable[[object], None]], None], keep: Collection[int] = ()) -> None:
        _reap_abandoned()
        self._received = b""
        with held_back():  # or one could be raised in the child before it has let go of the caller's work
            ends: tuple[int, ...] = ()
            try:
                self.results, sending = ends = os.pipe()
                self.pid = os.fork()
            except OSError as error:
                for end in ends:
                    os.close(end)
                raise HostError(f"no child process could be started: {error.strerror}") from None
            if self.pid == 0:
                _live_and_die(work, sending, keep)
        with suppress(PermissionError):  # a user with many pipes gets small ones: slower, and fine
            fcntl.fcntl(self.results, fcntl.F_SETPIPE_SZ, 1 << 20)
        os.close(sending)

    def receive(self, patience: float) -> list[Any] | None:
        """What has come: possibly nothing yet (after `patience` seconds); None when the child has ended."""
        if not select.select([self.results], [], [], patience)[0]:
            return []
        chunk = os.read(self.results, 1 << 20)
        if not chunk:
            return None
        self._received += chunk
        return list(self._complete())

    def _complete(self) -> Iterator[Any]:
        start = 0
        while len(self._received) - start >= _SIZE_BYTES:
            body = start + _SIZE_BYTES
            if len(self._received) < (end := body + int.from_bytes(self._received[start:body], "little")):
                break
            fine, value = marshal.loads(self._received[body:end])
            if not fine:
                raise RuntimeError(f"the work failed in its child:\n{value}")
            start = end
            yield value
        self._received = self._received[start:]

    def close(self) -> None:
        """Collects an ended child."""
        os.close(self.results)
        os.waitpid(self.pid, 0)

    def abandon(self) -> None:
        """Leaves a child to its fate: it dies as soon as the kernel lets it go, and is collected later."""
        os.close(self.results)
        os.kill(self.pid, signal.SIGKILL)
        _abandoned.append(self.pid)

    def state(self) -> dict[str, str]:
        """What the kernel shows of a child that does not come back: state, wchan and stack where readable."""
        return {name: text for name in ("stat", "wchan", "stack") if (text := _process_text(self.pid, name))}


def _fork(*pipe: int) -> int:
    try:
        return os.fork()
    except OSError:
        for end in pipe:
            os.close(end)
        raise


def _process_text(pid: int, name: str) -> str:
    try:
        with open(f"/proc/{pid}/{name}", encoding="utf-8", errors="replace") as file:
            text = file.read(4096).strip()
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[0] if name == "stat" else text


def _reap_abandoned() -> None:
    for pid in tuple(_abandoned):
        try:
            if os.waitpid(pid, os.WNOHANG)[0] == pid:
                _abandoned.remove(pid)
        except ChildProcessError:
            _abandoned.remove(pid)


def _live_and_die(work: Callable[[Callable[[object], None]], None], sending: int, keep: Collection[int]) -> NoReturn:
    code = 1
    try:
        _let_go_of_everything({sending, *keep})
        work(lambda value: _send(sending, (True, value)))
        code = 0
    except Exception:  # noqa: BLE001 - a bug in the work is the parent's to raise
        _send(sending, (False, traceback.format_exc()))
    finally:
        # os._exit: the parent's exit handlers, buffers and database connections are not the child's to end.
        os._exit(code)


def _let_go_of_everything(keep: Collection[int]) -> None:
    os.setsid()  # a Ctrl-C at the terminal is for the parent; a write once begun is better finished
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)  # a stuck child must not keep the caller's pipes open
    low = 3
    for kept in sorted(keep):
        os.closerange(low, kept)
        low = kept + 1
    os.closerange(low, 1 << 16)


def _send(pipe: int, value: object) -> None:
    body = marshal.dumps(cast(Any, value))
    data = len(body).to_bytes(_SIZE_BYTES, "little") + body
    while data:
        data = data[os.write(pipe, data) :]


class Unreturned(Exception):
    """The child did not come back in time; `state` is what the kernel shows of it, `pid` its number."""

    def __init__(self, child: Child, seconds: float) -> None:
        self.pid, self.seconds, self.state = child.pid, seconds, child.state()
        super().__init__(f"no answer after {seconds:g} s")


def call(work: Callable[[], object], *, deadline: float, keep: Collection[int] = ()) -> Any:
    """`work()`'s result, which must be plain data. Raises Unreturned, or ChildProcessError if the child died.

    An interrupt is raised when the work has ended: whoever undoes it then starts from rest.
    """
    with held_back():
        return begin(work, deadline=deadline, keep=keep)()


def begin(work: Callable[[], object], *, deadline: float, keep: Collection[int] = ()) -> Callable[[], Any]:
    """The same, at work from now on: what is returned waits for the result, and may be interrupted."""
    child = Child(lambda send: send(work()), keep)
    return partial(_await, child, time.monotonic() + deadline, deadline)


def _await(child: Child, until: float, deadline: float) -> Any:
    left = deadline
    while left > 0:
        left = until - time.monotonic()
        try:
            results = child.receive(max(left, 0))  # asked for late, an answer may have come in time
        except RuntimeError:
            child.close()
            raise
        if results:
            child.close()
            return results[0]
        if results is None:
            child.close()
            raise ChildProcessError("the child that did the work died")
    late = Unreturned(child, deadline)
    child.abandon()
    raise late


def each(
    work: Callable[[str], object], subjects: Sequence[str], *, patience: float, children: int = 1
) -> Iterator[tuple[str, Any]]:
    """`(subject, work(subject))` for each, in order; an exception in place of a result that never came.

    The children are at work from now on. One that makes no progress for `patience` seconds is left behind with its
    subject (Unreturned), and another goes on after it.
    """
    size = -(-len(subjects) // children) or 1
    shards: list[_Shard] = []
    try:
        with held_back():
            shards.extend(_Shard(work, subjects[at : at + size]) for at in range(0, len(subjects), size))
    except BaseException:
        _abandon(shards)
        raise
    return _collected(shards, patience)


def _collected(shards: Sequence[_Shard], patience: float) -> Iterator[tuple[str, Any]]:
    try:
        while unfinished := [shard for shard in shards if not shard.finished]:
            ready = select.select([shard.pipe for shard in unfinished], [], [], patience / 4)[0]
            for shard in unfinished:
                with held_back():  # it may start a child, which must not be lost
                    shard.advance(patience, can_read=shard.pipe in ready)
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
        self._at = mmap.mmap(-1, _SIZE_BYTES)
        self._start()

    @property
    def pipe(self) -> int:
        return self._child.results

    @property
    def finished(self) -> bool:
        return len(self.results) == len(self.subjects)

    def _start(self) -> None:
        self._first = len(self.results)
        self._at[:] = self._seen = bytes(_SIZE_BYTES)
        self._moved = time.monotonic()
        self._child = Child(self._go_through)

    def _go_through(self, send: Callable[[object], None]) -> None:
        batch: list[object] = []
        for number, subject in enumerate(self.subjects[self._first :]):
            self._at[:] = number.to_bytes(_SIZE_BYTES, "little")
            batch.append(None if subject in self._lost else self._work(subject))
            if len(batch) == _BATCH:
                send(batch)
                batch = []
        send(batch)

    def advance(self, patience: float, *, can_read: bool) -> None:
        """Takes what has come; leaves a child behind that has ended or makes no progress."""
        batches = self._child.receive(0) if can_read else []
        if batches is None:
            self._lose(ChildProcessError("the child that read it died"))
            self._child.close()
            self._start()
        elif batches or self._at[:] != self._seen:
            self._seen, self._moved = self._at[:], time.monotonic()
            self._take(result for batch in batches for result in batch)
        elif time.monotonic() - self._moved > patience:
            self._lose(Unreturned(self._child, patience))
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
