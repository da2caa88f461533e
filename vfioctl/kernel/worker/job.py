"""One worker at one job, as its caller sees it: what it answers, how long it may take, giving it up."""

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

_ATTEMPTS = 3


class NotStarted(ChildProcessError):
    """The worker never began, for its fork server died before: what it was asked was not done."""


class Unreturned(Exception):
    """The worker did not come back in time; `state` is what the kernel shows of it, `pid` its number."""

    def __init__(self, pid: int, seconds: float) -> None:
        self.pid, self.seconds, self.state = pid, seconds, processes.state_of(pid)
        super().__init__(f"no answer after {seconds:g} s")


class Job:
    """A worker that runs `function(answers, *question)`, and the pipe that its answers come through.

    `modules`: what it will import, for the server to import before; `keep`: descriptors that it has until it ends, as
    the host's lock; `reading`: whether it may be killed; `two_way`: it can be asked more (`ask`).
    """

    def __init__(
        self,
        server: ForkServer,
        function: str,
        question: Sequence[object],
        *,
        modules: Sequence[str] = (),
        keep: Sequence[int] = (),
        reading: bool,
        two_way: bool = False,
    ) -> None:
        self._frames = Frames()
        theirs: list[int] = []
        handles.add(self)
        with deferred():
            try:
                page_fd, self._page = Page.create(tuple(question), reading=reading)
                theirs.append(page_fd)
                self._page.writing = not reading and not two_way
                sending = self._open_stream() if two_way else self._open_pipe()
                theirs.insert(0, sending)
                self._number, self._via = server.run(function, (module_of(function), *modules), (*theirs, *keep))
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
    _stream: _socket.socket | None = None

    def _open_pipe(self) -> int:
        self.answers, sending = os.pipe()
        with suppress(PermissionError):  # a user with many pipes gets small ones: slower, and fine
            fcntl.fcntl(self.answers, fcntl.F_SETPIPE_SZ, 1 << 20)
        return sending

    def _open_stream(self) -> int:
        self._stream, theirs = pair(_socket.SOCK_STREAM)
        self.answers = self._stream.fileno()
        return theirs.detach()

    @property
    def page(self) -> Page:
        """What the worker shows of itself, until this is closed."""
        assert self._page
        return self._page

    @property
    def pid(self) -> int:
        """0 until it runs."""
        return int(self._page.pid) if self._page else self._pid

    def ask(self, data: bytes, fds: Sequence[int] = ()) -> None:
        """Sends more to a two-way one. Raises ChildProcessError."""
        assert self._stream
        try:
            send_message(self._stream, data, fds)
        except OSError:
            raise self._died() from None

    def receive(self, timeout: float) -> list[Any] | None:
        """What has come: possibly nothing yet, after `timeout` seconds; None when the worker has ended.

        Raises RuntimeError where its work failed, HostError where it could not be forked.
        """
        poll = select.poll()
        poll.register(self.answers, select.POLLIN)
        if not poll.poll(max(timeout, 0) * 1000):
            return []
        try:
            chunk = os.read(self.answers, 1 << 20)
        except ConnectionResetError:  # it left requests unread
            return None
        return list(map(_result, self._frames.add(chunk))) if chunk else None

    def answer(self, until: float, timeout: float) -> Any:
        """The next result. Raises Unreturned at the moment `until`, `timeout` seconds after it was asked for.

        ChildProcessError when the worker has died, RuntimeError when its work failed.
        """
        left = timeout
        while left > 0:
            left = until - time.monotonic()
            results = self.receive(left)  # asked for late, an answer may have come in time
            if results:
                return results[0]
            if results is None:
                raise self._died()
        raise Unreturned(self.pid, timeout)

    def _died(self) -> ChildProcessError:
        return ChildProcessError("the process that did the work died") if self.pid else NotStarted("it never began")

    @property
    def has_ended(self) -> bool:
        """Of one that was asked nothing: whether it can be asked no more."""
        poll = select.poll()
        poll.register(self.answers, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Lets one that has done its work end; a two-way one ends when what it does has returned."""
        if self._stream:
            self._stream.close()
        elif self.answers >= 0:
            os.close(self.answers)
        if self._page:
            self._pid = int(self._page.pid)
            self._page.close()
        self.answers, self._stream, self._page = -1, None, None

    def abandon(self) -> None:
        """Gives up one that only reads: it is killed, and ends as soon as the kernel lets it go."""
        began = int(self.page.began) if self._page else 0
        self.close()
        if not client.kill(self._number, self._via):
            processes.kill(self.pid, began)

    def forget(self) -> None:
        """In a fork of the process: the worker is its parent's."""
        self.close()

    def __del__(self) -> None:
        if self._page and self._page.reading and self.answers >= 0:  # begun, and never waited for
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
    server: ForkServer, function: Callable[..., object], *args: object, timeout: float, keep: Sequence[int] = ()
) -> Any:
    """`function(*args)`, for a change: it is finished though the caller ends, and an interrupt waits for it.

    Raises Unreturned, ChildProcessError if the worker died, RuntimeError with the traceback of a bug, HostError.
    """
    with deferred():  # whoever undoes it then starts from rest
        return begin(server, function, *args, timeout=timeout, keep=keep, reading=False)()


def begin(
    server: ForkServer,
    function: Callable[..., object],
    *args: object,
    timeout: float,
    keep: Sequence[int] = (),
    reading: bool = True,
) -> Callable[[], Any]:
    """The same for a read, at work from now on: what is returned waits for the result, and may be interrupted."""
    name = name_of(function)
    start = partial(
        Job, server, "vfioctl.kernel.worker.job:do", (name, args), modules=[module_of(name)], keep=keep, reading=reading
    )
    return partial(_wait, start, start(), time.monotonic() + timeout, timeout)


def _wait(start: Callable[[], Job], job: Job, until: float, timeout: float) -> Any:
    for attempt in range(_ATTEMPTS):
        try:
            result = job.answer(until, timeout)
        except NotStarted:
            job.close()
            if attempt + 1 == _ATTEMPTS:
                raise HostError("no child process could be started: the fork server dies") from None
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
    """In the worker: one call, one result."""
    answers.send(named(name)(*args))
