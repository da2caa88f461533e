"""Writes files of the kernel, and reads, one after the other in a child that is never killed and leaves no zombie.

Each may sleep in the kernel for ever. The child is then left to its fate: when a write returns after all, it leaves its
verdict in a file and ends. One child does all of a change: forking costs more than writing.
"""

from __future__ import annotations

import json
import marshal
import os
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from vfioctl.errors import HostError
from vfioctl.kernel import files
from vfioctl.kernel.worker import child as expendable
from vfioctl.kernel.worker.child import SIZE_BYTES, Child
from vfioctl.signals import held_back

RETURNED = "returned"
_MOST_VERDICTS = 1 << 20


class Deputy:
    """The child. `keep`: descriptors that it has too, as the host's lock; `verdicts`: the file for its last word.

    `kernel`: what those functions are called with that it is to call. Every question raises Unreturned when it was not
    answered in time, ChildProcessError when the child died.
    """

    def __init__(self, kernel: object, keep: Collection[int] = (), verdicts: Path | None = None) -> None:
        self.helps = os.getpid()
        with held_back():
            requests, self._requests = os.pipe()
            try:
                self._child = Child(_serve(kernel, requests, verdicts), (*keep, requests), orphan=True)
            except BaseException:
                os.close(self._requests)
                raise
            finally:
                os.close(requests)

    def write(self, path: str, value: str, *, deadline: float) -> int:
        """0 or the errno."""
        return int(self._asked("write", path, value, deadline))

    def group_flags(self, path: str, *, deadline: float) -> tuple[int, int]:
        """As `files.group_flags`."""
        errno, flags = self._asked("group", path, "", deadline)
        return errno, flags

    def call(self, function: Callable[..., Any], subject: str, *, deadline: float) -> Any:
        """`function(kernel, subject)`, which is one of a module, and returns plain data."""
        (result,) = self._asked("call", f"{function.__module__}:{function.__name__}", subject, deadline)
        return result

    def _asked(self, verb: str, name: str, value: str, deadline: float) -> Any:
        with held_back():  # heard when the write has ended: whoever undoes it then starts from rest
            self._child.meet()
            body = marshal.dumps((verb, str(name), str(value)))
            try:
                os.write(self._requests, len(body).to_bytes(SIZE_BYTES, "little") + body)
            except BrokenPipeError:
                raise ChildProcessError("the child that writes died") from None
            return self._child.answer(time.monotonic() + deadline, deadline)

    def close(self) -> None:
        """Lets it end, at once or when its write returns."""
        os.close(self._requests)
        with held_back(), suppress(HostError):
            if self.helps == os.getpid():
                self._child.meet()
            self._child.close()


def _serve(kernel: object, requests: int, verdicts: Path | None) -> Callable[[Callable[[object], None]], None]:
    def serve(send: Callable[[object], None]) -> None:
        while size := os.read(requests, SIZE_BYTES):
            answer = _answer(kernel, *marshal.loads(os.read(requests, int.from_bytes(size, "little"))))
            try:
                send(answer)
            except BrokenPipeError:  # it was given up: nobody waits for the answer any more
                if isinstance(answer, int):
                    _leave_verdict(verdicts, answer)

    return serve


def _answer(kernel: object, verb: str, name: str, value: str) -> object:
    if verb == "write":
        return files.write_once(name, value)
    if verb == "group":
        return files.group_flags(name)
    module, _, function = name.partition(":")
    return (getattr(import_module(module), function)(kernel, value),)


def _leave_verdict(verdicts: Path | None, errno: int) -> None:
    if verdicts is None:
        return
    line = json.dumps({"ticket": ticket_of(os.getpid()), "said": files.symbol(errno) if errno else RETURNED})
    with suppress(OSError):
        fd = os.open(verdicts, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        os.write(fd, f"{line}\n".encode())
        os.close(fd)


def ticket_of(pid: int) -> str:
    """A process by its number and the moment it began: numbers are used again. One that has ended began never."""
    fields = expendable.process_text(pid, "stat").rpartition(")")[2].split()
    there = len(fields) > 19 and fields[0] not in ("Z", "X")
    return f"{pid}:{fields[19]}" if there else f"{pid}:"


def write_ended(ticket: str, verdicts: Path | None) -> str | None:
    """What a given-up write came to, as `Kernel.write_ended` tells it."""
    if said := _verdict(ticket, verdicts):
        return said
    pid, _, began = ticket.partition(":")
    there = pid.isascii() and pid.isdigit() and began and ticket_of(int(pid)) == ticket
    return None if there else "unknown"


def _verdict(ticket: str, verdicts: Path | None) -> str:
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
