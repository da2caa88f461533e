"""One job of a worker, seen from the caller: its answers, its timeout, and abandoning it."""

from __future__ import annotations

import _socket
import fcntl
import os
import select
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from vfioctl.errors import HostError
from vfioctl.kernel.worker import client, processes
from vfioctl.kernel.worker.client import ForkServer, handles
from vfioctl.kernel.worker.names import module_of, name_of, named
from vfioctl.kernel.worker.server import Answers
from vfioctl.kernel.worker.wire import FAILURE, NOT_STARTED, Frames, Page, pair, send_message
from vfioctl.signals import deferred

ATTEMPTS = 3
"""How often work is requested that was not started."""
KEEPS_DYING = "no child process could be started: the fork server keeps dying"
_START_POLL = 0.1
START_TIMEOUT = 60.0
"""Seconds that a process may take to start. The timeout of its work begins once it has started."""


class NotStarted(ChildProcessError):
    """The worker never started, because its fork server had died: nothing was done."""


class Unreturned(Exception):
    """The worker did not answer within the timeout. `state`: state, wchan and stack of its process; `pid`: its pid."""

    def __init__(self, pid: int, seconds: float) -> None:
        self.pid, self.seconds, self.state = pid, seconds, processes.state_of(pid)
        super().__init__(f"no answer after {seconds:g} s")


class Job:
    """A worker that runs `function(answers, *question)`, and the pipe for its answers.

    `modules`: imported by the server before it forks; `fds`: descriptors that stay open until the worker ends, such as
    the host's lock; `reading`: whether it may be killed; `two_way`: whether it takes more requests (`ask`).
    """

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
            except OSError as error:
                self.close()
                raise HostError(f"no child process could be started: {error.strerror}") from None
            except BaseException:
                self.close()
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
        """The results that have arrived; empty after `timeout` seconds, None when the worker has ended.

        Raises RuntimeError when its work failed, HostError when it could not be forked.
        """
        poll = select.poll()
        poll.register(self.answers, select.POLLIN)
        if not poll.poll(max(timeout, 0) * 1000):
            return []
        chunk = os.read(self.answers, 1 << 20)
        return list(map(_result, self._frames.add(chunk))) if chunk else None

    def answer(self, until: float, timeout: float) -> Any:
        """The next result. Raises Unreturned at `until` (monotonic), or `timeout` seconds after the worker has started.

        ChildProcessError when the worker has died, RuntimeError when its work failed.
        """
        started_by, runs = time.monotonic() + START_TIMEOUT, self.pid != 0
        while True:
            left = until - time.monotonic()
            results = self.receive(left if runs else _START_POLL)  # even late, an answer may have come in time
            if results:
                return results[0]
            if results is None:
                raise self._died()
            now = time.monotonic()
            if not runs and self.pid:  # starting does not count towards the timeout
                runs, until = True, max(until, now + timeout)
            if now >= (until if runs else max(until, started_by)):
                raise Unreturned(self.pid, timeout)

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
        if self._page and self._page.reading and self.answers >= 0:  # started, but its result was not awaited
            self.abandon()
        else:
            self.close()


def _result(frame: tuple[int, Any]) -> Any:
    kind, value = frame
    if kind == NOT_STARTED:
        raise HostError(f"no child process could be started: {value}")
    if kind == FAILURE:
        raise RuntimeError(f"the work failed in its worker:\n{value}")
    return value


# -- one call ------------------------------------------------------------------------------------------


def call(
    server: ForkServer, function: Callable[..., object], *args: object, timeout: float, fds: Sequence[int] = ()
) -> Any:
    """Runs `function(*args)` for a change. It finishes even if the caller ends, and SIGINT is deferred meanwhile.

    Raises Unreturned, ChildProcessError if the worker died, RuntimeError with the traceback of a bug, HostError.
    """
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
    name = name_of(function)
    start = partial(
        Job, server, "vfioctl.kernel.worker.job:do", (name, args), modules=[module_of(name)], fds=fds, reading=reading
    )
    return partial(_wait, start, start(), time.monotonic() + timeout, timeout)


def _wait(start: Callable[[], Job], job: Job, until: float, timeout: float) -> Any:
    for attempt in range(ATTEMPTS):
        try:
            result = job.answer(until, timeout)
        except NotStarted:
            job.close()
            if attempt + 1 == ATTEMPTS:
                raise HostError(KEEPS_DYING) from None
            job = start()
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


def do(answers: Answers, name: str, args: tuple[object, ...]) -> None:
    """Runs in the worker: calls the function, and sends its result."""
    answers.send(named(name)(*args))
