"""The fork server: a process with one thread that forks workers on request, so that its client never forks. It never
blocks: it imports, forks, collects ended workers, and on request kills a worker that reads. When its socket is closed,
because the client has ended or has closed it, it kills the workers that read, and ends. A worker in a write is never
killed. Each request is one message: `("run", job, function, modules)` with descriptors (for the answers, the page, and
any others that the worker keeps), or `("kill", job)`."""

from __future__ import annotations

import _socket
import marshal
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple, NoReturn

from vfioctl.environment import close_all_but
from vfioctl.kernel.worker.processes import began_at
from vfioctl.kernel.worker.wire import FAILURE, NOT_STARTED, VALUE, Page, named, receive_message, send
from vfioctl.signals import unblock

_MOST_REQUEST = 1 << 16
_LAST_SECONDS = 0.5
"""Seconds for workers to end after the client has. Only a blocked read takes longer; writes are not waited for."""


class Answers:
    """Sends the results of a worker. `page`: shared with the caller; `fds`: further descriptors that the worker got."""

    def __init__(self, fd: int, page: Page, fds: Sequence[int] = ()) -> None:
        self.page, self.fds = page, fds
        self._fd = fd

    def send(self, value: object) -> None:
        """Sends one result, which must be plain data. Raises OSError when the caller has closed the pipe."""
        send(self._fd, (VALUE, value))


class _Worker(NamedTuple):
    job: int
    page: Page


def main(fd: int) -> NoReturn:
    """Serves requests from the socket `fd`. Closes all other descriptors, and never returns."""
    code = 1
    try:
        _leave_the_caller(fd)
        _Server(_socket.socket(fileno=fd)).serve()
        code = 0
    finally:
        # os._exit: the client's exit handlers, buffers and database connections must not run here
        os._exit(code)


def _leave_the_caller(fd: int) -> None:
    os.setsid()  # Ctrl-C at the terminal must not interrupt a write
    signal.set_wakeup_fd(-1)
    for ignored in (signal.SIGINT, signal.SIGPIPE):
        signal.signal(ignored, signal.SIG_IGN)
    for usual in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(usual, signal.SIG_DFL)
    unblock()
    _leave_its_directory()
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)  # a stuck worker must not keep the caller's pipes open
    close_all_but(fd)
    os.set_inheritable(fd, False)  # noqa: FBT003 - so it is declared


def _leave_its_directory() -> None:
    """Relative paths belong to the caller, which resolves them; a stuck worker must not keep a file system in use."""
    with suppress(OSError):  # the caller's directory is gone
        sys.path[:] = [os.path.abspath(place) for place in sys.path]
    os.chdir("/")


class _Server:
    def __init__(self, sock: _socket.socket) -> None:
        self._sock = sock
        self._workers: dict[int, _Worker] = {}
        self._woken, self._waking = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waking, warn_on_full_buffer=False)

    def serve(self) -> None:
        poll = select.poll()
        for fd in (self._sock.fileno(), self._woken):
            poll.register(fd, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if self._woken in ready:
                os.read(self._woken, 4096)
                self._collect()
            if self._sock.fileno() in ready:
                request, fds = receive_message(self._sock, _MOST_REQUEST)
                if not request:
                    return self._end()
                self._do(fds, *marshal.loads(request))

    def _do(self, fds: list[int], verb: str, job: int, *details: Any) -> None:
        try:
            if verb == "run":
                self._run(fds, job, *details)
            else:
                for pid in (pid for pid, worker in self._workers.items() if worker.job == job):
                    os.kill(pid, signal.SIGKILL)
        finally:
            for fd in fds:
                os.close(fd)

    def _run(self, fds: list[int], job: int, function: str, modules: tuple[str, ...]) -> None:
        for module in modules:
            with suppress(Exception):  # the worker fails in the same way, and reports it
                import_module(module)  # once for all workers
        try:
            page = Page(fds[1])
            pid = os.fork()
        except OSError as error:
            with suppress(OSError):
                send(fds[0], (NOT_STARTED, error.strerror))
            return
        if pid == 0:
            self._become_worker(fds, function, page)
        self._workers[pid] = _Worker(job, page)

    def _become_worker(self, fds: list[int], function: str, page: Page) -> NoReturn:
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for fd in (self._sock.fileno(), self._woken, self._waking):
                os.close(fd)
            for other in self._workers.values():
                other.page.close()
            work(fds, function, page)
            code = 0
        finally:
            os._exit(code)

    def _collect(self) -> None:
        """Collects ended workers. Their pids may be reused from now on, so they are not killed any more."""
        with suppress(ChildProcessError):
            while pid := os.waitpid(-1, os.WNOHANG)[0]:
                if worker := self._workers.pop(pid, None):
                    worker.page.close()

    def _end(self) -> None:
        for pid, worker in self._workers.items():
            if worker.page.reading:
                os.kill(pid, signal.SIGKILL)
        until = time.monotonic() + _LAST_SECONDS  # collected here, because some init processes are slow to do so
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        self._collect()
        workers = self._workers.values()
        while any(not worker.page.writing for worker in workers) and (left := until - time.monotonic()) > 0:
            if poll.poll(left * 1000):
                os.read(self._woken, 4096)
            self._collect()


def work(fds: Sequence[int], function: str, page: Page) -> None:
    """Runs `function(answers, *question)` in a worker. An exception is sent to the caller, which raises it."""
    page.began = began_at(os.getpid())
    page.pid = os.getpid()
    answers, question, *others = fds
    try:
        asked = Page.question(question)
        os.close(question)
        named(function)(Answers(answers, page, others), *asked)
    except Exception:  # noqa: BLE001 - any exception is sent to the caller
        import traceback

        with suppress(OSError):
            send(answers, (FAILURE, traceback.format_exc()))
