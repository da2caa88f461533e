"""One job of a worker, seen from the caller: its answers, its timeout, and abandoning it."""

from __future__ import annotations

import _socket
import fcntl
import os
import select
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

from vfioctl.errors import HostError
from vfioctl.kernel.worker import client, processes
from vfioctl.kernel.worker.client import ForkServer, handles
from vfioctl.kernel.worker.server import Answers
from vfioctl.kernel.worker.stall import Stall, Unreturned
from vfioctl.kernel.worker.wire import FAILURE, NOT_STARTED, Frames, Page, module_of, name_of, named, pair, send_message
from vfioctl.signals import deferred

T = TypeVar("T")
ATTEMPTS = 3  # how often work is requested that was not started
KEEPS_DYING = "no child process could be started: the fork server keeps dying"
_START_POLL = 0.1
START_TIMEOUT = 60.0
"""Seconds that a process may take to start. The timeout of its work begins once it has started."""


class NotStarted(ChildProcessError):
    """The worker never started, because its fork server had died: nothing was done."""


class Gathered(NamedTuple):
    """The items of a generator function that ran in a worker: those that arrived in time."""

    items: list[Any]
    error: Exception | None
    """Why the others did not: Unreturned, ChildProcessError, or RuntimeError with the traceback of a bug."""


class Job:
    """A worker that runs `function(answers, *question)`, and the pipe for its answers. `modules`: imported by the
    server before it forks; `fds`: descriptors that stay open until the worker ends, such as the host's lock; `reading`:
    whether it may be killed; `two_way`: whether it takes more requests (`ask`)."""

    def __init__(
        self,
        server: ForkServer,
        function: str,
        question: Sequence[object],
        *,
        modules: Sequence[str] = (),
        fds: Sequence[int] = (),
        reading: bool,
        two_way: bool = False,
    ) -> None:
        self._frames = Frames()
        self._arrived: deque[tuple[int, Any]] = deque()
        theirs: list[int] = []
        handles.add(self)
        with deferred():
            try:
                self.answers, sending = os.pipe()
                theirs.append(sending)
                with suppress(PermissionError):  # pipe-user-pages-soft is exceeded: a small pipe works too
                    fcntl.fcntl(self.answers, fcntl.F_SETPIPE_SZ, 1 << 20)
                page_fd, self._page = Page.create(tuple(question), reading=reading)
                theirs.append(page_fd)
                self._page.writing = not reading and not two_way
                if two_way:
                    self._requests, requests = pair(_socket.SOCK_STREAM)
                    theirs.append(requests.detach())
                self._number, self._via = server.run(function, (module_of(function), *modules), (*theirs, *fds))
            except BaseException as error:
                self.close()
                if isinstance(error, OSError):
                    raise HostError(f"no child process could be started: {error.strerror}") from None
                raise
            finally:
                for fd in theirs:
                    os.close(fd)

    answers, _pid = -1, 0
    _page: Page | None = None
    _requests: _socket.socket | None = None

    @property
    def page(self) -> Page:
        """The shared page with the worker's state. Not available after `close`."""
        assert self._page
        return self._page

    @property
    def pid(self) -> int:
        """The pid of the worker; 0 until it runs."""
        return int(self._page.pid) if self._page else self._pid

    def ask(self, data: bytes, fds: Sequence[int] = ()) -> None:
        """Sends a request to a two-way worker. Raises ChildProcessError when it has died."""
        assert self._requests
        try:
            send_message(self._requests, data, fds)
        except OSError:
            raise self._died() from None

    def receive(self, timeout: float) -> list[Any] | None:
        """The results that have arrived; empty after `timeout` seconds, None when the worker has ended. Raises
        RuntimeError when its work failed, HostError when it could not be forked."""
        frames = self._receive(timeout)
        return None if frames is None else list(map(_result, frames))

    def _receive(self, timeout: float) -> list[tuple[int, Any]] | None:
        poll = select.poll()
        poll.register(self.answers, select.POLLIN)
        if not poll.poll(max(timeout, 0) * 1000):
            return []
        chunk = os.read(self.answers, 1 << 20)
        return list(self._frames.add(chunk)) if chunk else None

    def answer(self, stall: Stall) -> Any:
        """The next result. Raises Unreturned when the stall is over, which begins when the worker has started;
        ChildProcessError when the worker has died, RuntimeError when its work failed."""
        starting = Stall(START_TIMEOUT)
        if self.pid and not stall.pid:
            stall.take_up(self.pid)
        while not self._arrived and not self._has_received(stall.pause if stall.pid else _START_POLL):
            if not stall.pid and self.pid:  # starting does not count towards the timeout
                stall.begin(0)
                stall.take_up(self.pid)
            is_over = stall.is_over() if stall.pid else starting.passed > max(START_TIMEOUT, stall.timeout)
            if is_over and not self._has_received(0):  # even late, an answer may have come in time
                raise stall.error()
        return _result(self._arrived.popleft())

    def _has_received(self, timeout: float) -> bool:
        frames = self._receive(timeout)
        if frames is None:
            raise self._died()
        self._arrived += frames
        return bool(self._arrived)

    def _died(self) -> ChildProcessError:
        return ChildProcessError("the process that did the work died") if self.pid else NotStarted("it never began")

    @property
    def has_ended(self) -> bool:
        """Whether an idle worker has ended."""
        poll = select.poll()
        poll.register(self.answers, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Closes the connection. A worker that has answered ends; a two-way worker ends after its current request."""
        if self._requests:
            self._requests.close()
        if self.answers >= 0:
            os.close(self.answers)
        if self._page:
            self._pid = int(self._page.pid)
            self._page.close()
        self.answers, self._requests, self._page = -1, None, None

    def abandon(self) -> None:
        """Kills a worker that only reads, without waiting. If it blocks in the kernel, it ends later."""
        began = int(self.page.began) if self._page else 0
        self.close()
        if not client.kill(self._number, self._via):
            processes.kill(self.pid, began)

    def forget(self) -> None:
        """Called in a fork of the process: the worker belongs to the parent."""
        self.close()

    def __del__(self) -> None:
        try:
            if self._page and self._page.reading and self.answers >= 0:  # started, but its result was not awaited
                self.abandon()
            else:
                self.close()
        except AttributeError:
            pass  # the interpreter is ending, and has cleared modules: the kernel closes the descriptors


def _result(frame: tuple[int, Any]) -> Any:
    kind, value = frame
    if kind == NOT_STARTED:
        raise HostError(f"no child process could be started: {value}")
    if kind == FAILURE:
        raise RuntimeError(f"the work failed in its worker:\n{value}")
    return value


def call(
    server: ForkServer, function: Callable[..., object], *args: object, timeout: float, fds: Sequence[int] = ()
) -> Any:
    """Runs `function(*args)` for a change. It finishes even if the caller ends, and SIGINT is deferred meanwhile.
    Raises Unreturned, ChildProcessError if the worker died, RuntimeError with the traceback of a bug, HostError."""
    with deferred():  # a rollback must not start while this runs
        return begin(server, function, *args, timeout=timeout, fds=fds, reading=False)()


def begin(
    server: ForkServer,
    function: Callable[..., object],
    *args: object,
    timeout: float,
    fds: Sequence[int] = (),
    reading: bool = True,
) -> Callable[[], Any]:
    """Starts `function(*args)` for a read. The returned function waits for the result; it can be interrupted."""
    start = _starting(server, do, function, args, fds=fds, reading=reading)
    return partial(_wait, start, start(), Job.answer, Stall(timeout))


def begin_each(
    server: ForkServer, function: Callable[..., Iterable[object]], *args: object, timeout: float
) -> Callable[[], Gathered]:
    """Starts a generator function for a read. The returned function waits for its end, or for the timeout."""
    start = _starting(server, do_each, function, args)
    return partial(_wait, start, start(), _gathered, Stall(timeout))


def _starting(
    server: ForkServer,
    work: Callable[..., None],
    function: Callable[..., object],
    args: tuple[object, ...],
    *,
    fds: Sequence[int] = (),
    reading: bool = True,
) -> Callable[[], Job]:
    name = name_of(function)
    return partial(Job, server, name_of(work), (name, args), modules=[module_of(name)], fds=fds, reading=reading)


def _wait(start: Callable[[], Job], job: Job, take: Callable[[Job, Stall], T], stall: Stall) -> T:
    for attempt in range(ATTEMPTS):
        try:
            result = take(job, stall)
        except NotStarted:
            job.close()
            if attempt + 1 == ATTEMPTS:
                raise HostError(KEEPS_DYING) from None
            job = start()
            stall.begin(0)
        except (ChildProcessError, RuntimeError, HostError):
            job.close()
            raise
        except BaseException:
            job.abandon()
            raise
        else:
            job.close()
            return result
    raise AssertionError


def _gathered(job: Job, stall: Stall) -> Gathered:
    results: list[Any] = []
    try:
        while (result := job.answer(stall)) is not None:
            results.append(result)
    except NotStarted:
        raise
    except (Unreturned, ChildProcessError, RuntimeError) as error:
        job.abandon()
        return Gathered(results, error)
    return Gathered(results, None)


def do(answers: Answers, name: str, args: tuple[object, ...]) -> None:
    """Runs in the worker: calls the function, and sends its result."""
    answers.send(named(name)(*args))


def do_each(answers: Answers, name: str, args: tuple[object, ...]) -> None:
    """Runs in the worker: sends each item of the generator as soon as it is there, and None at the end."""
    for item in named(name)(*args):
        answers.send(item)
    answers.send(None)
