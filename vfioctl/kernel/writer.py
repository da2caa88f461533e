"""Writes files of the kernel one after the other in a child of its own, which is never killed and leaves no zombie.

It asks about VFIO groups as well, for that may block too.

A write can sleep in the kernel for ever. The child is then left to its fate: when the write returns after all, it
leaves its verdict in a file and ends. One child does all the writes of a change: forking costs more than writing.
"""

from __future__ import annotations

import json
import marshal
import os
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from vfioctl.errors import HostError
from vfioctl.interrupts import held_back
from vfioctl.kernel import expendable, files
from vfioctl.kernel.expendable import SIZE_BYTES, Child

RETURNED = "returned"
_MOST_VERDICTS = 1 << 20


class Writer:
    """The child. `keep`: descriptors that it has too, as the host's lock; `verdicts`: the file for its last word."""

    def __init__(self, keep: Collection[int] = (), verdicts: Path | None = None) -> None:
        with held_back():
            requests, self._requests = os.pipe()
            try:
                self._child = Child(_serve(requests, verdicts), (*keep, requests), orphan=True)
            except BaseException:
                os.close(self._requests)
                raise
            finally:
                os.close(requests)

    def write(self, path: str, value: str, *, deadline: float) -> int:
        """0 or the errno. Raises Unreturned when the write did not return in time, ChildProcessError."""
        return int(self._asked("write", path, value, deadline))

    def group_flags(self, path: str, *, deadline: float) -> tuple[int, int]:
        """As `files.group_flags`. Raises Unreturned, ChildProcessError."""
        errno, flags = self._asked("group", path, "", deadline)
        return errno, flags

    def _asked(self, verb: str, path: str, value: str, deadline: float) -> Any:
        with held_back():  # heard when the write has ended: whoever undoes it then starts from rest
            self._child.meet()
            body = marshal.dumps((verb, str(path), str(value)))
            try:
                os.write(self._requests, len(body).to_bytes(SIZE_BYTES, "little") + body)
            except BrokenPipeError:
                raise ChildProcessError("the child that writes died") from None
            return self._child.answer(time.monotonic() + deadline, deadline)

    def close(self) -> None:
        """Lets it end, at once or when its write returns."""
        os.close(self._requests)
        with held_back(), suppress(HostError):
            self._child.meet()
            self._child.close()


def _serve(requests: int, verdicts: Path | None) -> Callable[[Callable[[object], None]], None]:
    def serve(send: Callable[[object], None]) -> None:
        while size := os.read(requests, SIZE_BYTES):
            verb, path, value = marshal.loads(os.read(requests, int.from_bytes(size, "little")))
            answer = files.write_once(path, value) if verb == "write" else files.group_flags(path)
            try:
                send(answer)
            except BrokenPipeError:  # it was given up: nobody waits for the answer any more
                if isinstance(answer, int):
                    _leave_verdict(verdicts, answer)

    return serve


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
