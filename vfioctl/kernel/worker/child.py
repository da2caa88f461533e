"""Does what may block for ever in a forked child that the caller can outlive.

A write to sysfs, a read under the device lock and any call of NVML can sleep in state D, where no signal reaches them.
Here such work runs in a child that holds nothing of its parent's: no terminal, no pipe, no lock but those it is told to
keep. May do nothing else to the machine.
"""

from __future__ import annotations

import fcntl
import marshal
import os
import select
import signal
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn, cast

from vfioctl.errors import HostError
from vfioctl.signals import held_back, let_go

SIZE_BYTES = 8
_LONGEST_START = 60.0
_abandoned: list[int] = []


class Child:
    """A forked child and the pipe that its results come through, each as one marshalled value."""

    def __init__(
        self, work: Callable[[Callable[[object], None]], None], keep: Collection[int] = (), *, orphan: bool = False
    ) -> None:
        """`orphan`: it is init's child, not the caller's, so that it leaves no zombie however late it ends.

        Such a one is to be met (`meet`) before anything is asked of it: it starts while the caller goes on.
        """
        _reap_abandoned()
        self._received, self._orphan, self._met = b"", orphan, False
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
                _live_and_die(work, sending, keep, orphan=orphan)
        with suppress(PermissionError):  # a user with many pipes gets small ones: slower, and fine
            fcntl.fcntl(self.results, fcntl.F_SETPIPE_SZ, 1 << 20)
        os.close(sending)

    def meet(self) -> None:
        """Waits until an orphan is there. Raises HostError."""
        if not self._orphan or self._met:
            return
        self._met = True
        os.waitpid(self.pid, 0)
        while (first := self.receive(_LONGEST_START)) == []:
            pass
        if first is None:
            os.close(self.results)
            raise HostError("no child process could be started")
        self.pid = first[0]

    def receive(self, timeout: float) -> list[Any] | None:
        """What has come: possibly nothing yet (after `patience` seconds); None when the child has ended."""
        if not select.select([self.results], [], [], timeout)[0]:
            return []
        chunk = os.read(self.results, 1 << 20)
        if not chunk:
            return None
        self._received += chunk
        return list(self._complete())

    def answer(self, until: float, deadline: float) -> Any:
        """The next result. Raises Unreturned at the moment `until`, `deadline` seconds after it was asked for.

        ChildProcessError when the child has died, RuntimeError when its work failed.
        """
        left = deadline
        while left > 0:
            left = until - time.monotonic()
            results = self.receive(max(left, 0))  # asked for late, an answer may have come in time
            if results:
                return results[0]
            if results is None:
                raise ChildProcessError("the child that did the work died")
        raise Unreturned(self, deadline)

    def _complete(self) -> Iterator[Any]:
        start = 0
        while len(self._received) - start >= SIZE_BYTES:
            body = start + SIZE_BYTES
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
        if not self._orphan:
            os.waitpid(self.pid, 0)

    def abandon(self) -> None:
        """Leaves a child to its fate: it dies as soon as the kernel lets it go, and is collected later."""
        os.close(self.results)
        os.kill(self.pid, signal.SIGKILL)
        _abandoned.append(self.pid)

    def state(self) -> dict[str, str]:
        """What the kernel shows of a child that does not come back: state, wchan and stack where readable."""
        found = {"wchan": process_text(self.pid, "wchan"), "stack": process_text(self.pid, "stack")}
        found["stat"] = process_text(self.pid, "stat").rpartition(")")[2][1:2]
        return {name: text for name, text in found.items() if text}


def process_text(pid: int, name: str) -> str:
    """The beginning of a file below /proc/PID; empty when it cannot be read."""
    try:
        with open(f"/proc/{pid}/{name}", encoding="utf-8", errors="replace") as file:
            return file.read(4096).strip()
    except OSError:
        return ""


def _reap_abandoned() -> None:
    for pid in tuple(_abandoned):
        try:
            if os.waitpid(pid, os.WNOHANG)[0] == pid:
                _abandoned.remove(pid)
        except ChildProcessError:
            _abandoned.remove(pid)


def _live_and_die(
    work: Callable[[Callable[[object], None]], None], sending: int, keep: Collection[int], *, orphan: bool
) -> NoReturn:
    code = 1
    try:
        if orphan and os.fork():
            os._exit(0)
        _let_go_of_everything({sending, *keep})
        if orphan:
            _send(sending, (True, os.getpid()))
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
    let_go()
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
    data = len(body).to_bytes(SIZE_BYTES, "little") + body
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
    try:
        result = child.answer(until, deadline)
    except Unreturned:
        child.abandon()
        raise
    except (ChildProcessError, RuntimeError):
        child.close()
        raise
    child.close()
    return result
