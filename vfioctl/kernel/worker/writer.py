"""Writes files of the kernel in a worker that is never killed while it writes.

A write may block in the kernel without a timeout. The worker is then abandoned: when the write returns after all, the
worker appends the result to a file (the verdict) and ends. One worker does all changes of a session, because forking
takes longer than writing. It also reads single subjects.

A request comes with copies of the lock descriptors, so that the locks are held until the write ends, even if the
caller has ended.
"""

from __future__ import annotations

import _socket
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from vfioctl.kernel import files
from vfioctl.kernel.worker.client import ForkServer
from vfioctl.kernel.worker.job import Job
from vfioctl.kernel.worker.names import named
from vfioctl.kernel.worker.processes import ticket_of
from vfioctl.kernel.worker.server import Answers
from vfioctl.kernel.worker.survey import Maker, made
from vfioctl.kernel.worker.wire import Frames, framed, receive_message
from vfioctl.signals import deferred

RETURNED = "returned"
_MOST_VERDICTS = 1 << 20


class WriteWorker:
    """A write worker, as its caller uses it. Not thread-safe: `Workers` gives it to one thread at a time.

    Every request raises Unreturned after its timeout, and ChildProcessError when the worker has died.
    """

    def __init__(self, server: ForkServer, maker: Maker, *, modules: Sequence[str] = ()) -> None:
        function = "vfioctl.kernel.worker.writer:serve"
        self._job = Job(server, function, (maker,), modules=modules, reading=False, two_way=True)

    @property
    def pid(self) -> int:
        """0 until it runs."""
        return self._job.pid

    @property
    def has_ended(self) -> bool:
        return self._job.has_ended

    def write(
        self, path: str, value: str, *, timeout: float, verdicts: Path | None = None, locks: Sequence[int] = ()
    ) -> int:
        """Writes `value` to `path`; returns 0 or the errno. SIGINT is deferred until then."""
        with deferred():
            self._job.page.writing = True
            self._ask(("write", path, value, str(verdicts or "")), locks)
            errno = int(self._answer(timeout))
            self._job.page.writing = False
        return errno

    def group_flags(self, path: str, *, timeout: float) -> tuple[int, int]:
        """As `files.group_flags`."""
        with deferred():
            self.begin_reading("group", path)
            errno, flags = self.answer_reading(timeout)
        return errno, flags

    def begin_reading(self, *request: object) -> None:
        """Requests a read (`read`, reader name, subject, reader arguments). The worker may be killed from now on."""
        self._job.page.reading = True
        self._ask(request)

    def answer_reading(self, timeout: float) -> Any:
        """The result of the read."""
        answer = self._answer(timeout)
        self._job.page.reading = False
        return answer

    def _ask(self, request: Sequence[object], locks: Sequence[int] = ()) -> None:
        self._job.ask(framed(tuple(request)), locks)

    def _answer(self, timeout: float) -> Any:
        return self._job.answer(time.monotonic() + timeout, timeout)

    def close(self) -> None:
        """Ends the worker: at once, or when its write returns. A worker that only reads is killed."""
        if self._job.answers >= 0 and self._job.page.reading:
            self._job.abandon()
        else:
            self._job.close()


# -- in the worker -------------------------------------------------------------------------------------


def serve(answers: Answers, maker: Maker) -> None:
    """Runs in the worker: handles requests until the caller closes the stream."""
    _Server(answers, maker).serve()


class _Server:
    def __init__(self, answers: Answers, maker: Maker) -> None:
        self._answers, self._maker = answers, maker
        self._kernel: object = None
        self._unread: tuple[str, int] | None = None
        """The verdict file and the errno of the last write, in case the caller does not read the answer."""

    def serve(self) -> None:
        stream, frames, locks = _socket.socket(fileno=self._answers.fd), Frames(), list[int]()
        while True:
            try:
                chunk, fds = receive_message(stream, 1 << 16)
            except ConnectionResetError:  # abandoned with an unread answer
                return self._leave_verdict()
            if not chunk:
                return None
            locks += fds
            for request in frames.add(chunk):
                self._do(*request)
                while locks:
                    os.close(locks.pop())

    def _do(self, verb: str, *details: Any) -> None:
        self._unread = None
        if verb == "write":
            path, value, verdicts = details
            answer: object = (errno := files.write_once(path, value))
            self._unread = verdicts, errno
        elif verb == "group":
            answer = files.group_flags(*details)
        else:
            reader, subject, args = details
            self._kernel = self._kernel or made(self._maker)
            answer = (named(reader)(self._kernel, *args)(subject),)
        try:
            self._answers.send(answer)
        except OSError:  # abandoned: the answer is not read
            self._leave_verdict()

    def _leave_verdict(self) -> None:
        if self._unread and self._unread[0]:
            leave_verdict(*self._unread)
            self._unread = None


def leave_verdict(verdicts: str, errno: int) -> None:
    """Appends the result of an abandoned write to the verdict file."""
    import json  # few sessions need it

    line = json.dumps({"ticket": ticket_of(os.getpid()), "said": files.symbol(errno) if errno else RETURNED})
    with suppress(OSError):
        fd = os.open(verdicts, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        os.write(fd, f"{line}\n".encode())
        os.close(fd)


# -- verdicts ------------------------------------------------------------------------------------------


def write_ended(ticket: str, verdicts: Path | None) -> str | None:
    """The result of an abandoned write; see `FileWriter.write_ended`."""
    if said := _verdict(ticket, verdicts):
        return said
    pid, _, began = ticket.partition(":")
    there = pid.isascii() and pid.isdigit() and began and ticket_of(int(pid)) == ticket
    return None if there else "unknown"


def _verdict(ticket: str, verdicts: Path | None) -> str:
    import json

    try:
        text = verdicts.read_bytes()[-_MOST_VERDICTS:].decode(errors="replace") if verdicts else ""
    except OSError:
        return ""
    said = ""
    for line in text.splitlines():
        with suppress(ValueError, TypeError, KeyError):
            known = json.loads(line)
            said = str(known["said"]) if known["ticket"] == ticket else said
    return said
