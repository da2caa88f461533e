"""What goes between the caller, its fork server and their workers: plain values (marshal) and descriptors.

Waits for nothing but the descriptor that it is given. Uses `_socket`, for `socket` takes a listing's time to import.
"""

from __future__ import annotations

import _socket
import marshal
import mmap
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, cast

SIZE_BYTES = 8
_DESCRIPTORS = 16
_INT_BYTES = 4

VALUE, FAILURE, NOT_STARTED = 0, 1, 2
"""What an answer is: a result, the traceback of a bug, or why no process could be started."""


# -- values over a stream ------------------------------------------------------------------------------


def framed(value: object) -> bytes:
    """The value with its size before it. Raises ValueError for what is no plain data."""
    body = marshal.dumps(cast(Any, value))
    return len(body).to_bytes(SIZE_BYTES, "little") + body


def send(fd: int, value: object) -> None:
    """Writes one value. Raises OSError."""
    data = framed(value)
    while data:
        data = data[os.write(fd, data) :]


class Frames:
    """Puts together what comes in pieces."""

    def __init__(self) -> None:
        self._received = b""

    def add(self, chunk: bytes) -> Iterator[Any]:
        """The values that are complete with it."""
        self._received += chunk
        start = 0
        while len(self._received) - start >= SIZE_BYTES:
            body = start + SIZE_BYTES
            end = body + int.from_bytes(self._received[start:body], "little")
            if len(self._received) < end:
                break
            value = marshal.loads(self._received[body:end])
            start = end
            yield value
        self._received = self._received[start:]


# -- messages with descriptors -------------------------------------------------------------------------


def pair(kind: int) -> tuple[_socket.socket, _socket.socket]:
    """Two connected sockets, which no program that is executed inherits."""
    return _socket.socketpair(_socket.AF_UNIX, kind)


def send_message(sock: _socket.socket, data: bytes, fds: Sequence[int] = ()) -> None:
    """Sends it, with copies of the descriptors. Raises OSError."""
    numbers = b"".join(fd.to_bytes(_INT_BYTES, sys.byteorder) for fd in fds)
    beside = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, numbers)] if fds else []
    sent = sock.sendmsg([data], beside, _socket.MSG_NOSIGNAL)
    while sent < len(data):  # of a stream only
        sent += sock.send(data[sent:], _socket.MSG_NOSIGNAL)


def receive_message(sock: _socket.socket, most: int) -> tuple[bytes, list[int]]:
    """The next message, or piece of a stream, with its descriptors; nothing at the end. Raises OSError."""
    space = _socket.CMSG_SPACE(_DESCRIPTORS * _INT_BYTES)
    data, beside, _, _ = sock.recvmsg(most, space, _socket.MSG_CMSG_CLOEXEC)
    fds = [
        int.from_bytes(numbers[at : at + _INT_BYTES], sys.byteorder)
        for level, kind, numbers in beside
        if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS)
        for at in range(0, len(numbers) - len(numbers) % _INT_BYTES, _INT_BYTES)
    ]
    return data, fds


# -- the page that a worker shares with its caller -----------------------------------------------------


class Page:
    """What a worker that blocks can no longer say itself; behind it, once and for all, what it was asked.

    `at`: the number of the subject that it reads. `pid` and `began` (clock ticks after boot): its process, 0 until it
    runs. `reading`: set by the caller while nothing but a read is under way, so that the worker may be killed.
    `writing`: the same for a change, so that nobody waits for it.
    """

    _AT, _PID, _BEGAN, _READING, _WRITING = (slice(n * SIZE_BYTES, (n + 1) * SIZE_BYTES) for n in range(5))
    BYTES = 5 * SIZE_BYTES

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, self.BYTES)

    @classmethod
    def create(cls, question: object, *, reading: bool) -> tuple[int, Page]:
        """The descriptor of a new one, and the page. Raises OSError."""
        fd = os.memfd_create("vfioctl-worker", os.MFD_CLOEXEC)
        try:
            data = bytes(cls.BYTES) + marshal.dumps(cast(Any, question))
            while data:
                data = data[os.write(fd, data) :]
            page = cls(fd)
        except BaseException:
            os.close(fd)
            raise
        page.reading = reading
        return fd, page

    @classmethod
    def question(cls, fd: int) -> Any:
        """What was asked."""
        with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as memory:
            return marshal.loads(memory[cls.BYTES :])

    def _get(self, place: slice) -> int:
        return int.from_bytes(self._memory[place], "little")

    def _set(self, place: slice, value: int) -> None:
        self._memory[place] = value.to_bytes(SIZE_BYTES, "little")

    at = property(lambda self: self._get(self._AT), lambda self, value: self._set(self._AT, value))
    pid = property(lambda self: self._get(self._PID), lambda self, value: self._set(self._PID, value))
    began = property(lambda self: self._get(self._BEGAN), lambda self, value: self._set(self._BEGAN, value))
    writing = property(lambda self: self._get(self._WRITING) != 0, lambda self, value: self._set(self._WRITING, value))
    reading = property(lambda self: self._get(self._READING) != 0, lambda self, value: self._set(self._READING, value))

    def close(self) -> None:
        self._memory.close()
