"""The wire format between client, fork server and workers: plain values (marshal), names of functions, descriptors.
Blocks only on the descriptor that it is given. Uses `_socket`, because importing `socket` slows listings."""

from __future__ import annotations

import _socket
import marshal
import mmap
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any, cast

SIZE_BYTES = 8
_DESCRIPTORS = 16
_INT_BYTES = 4

VALUE, FAILURE, NOT_STARTED = 0, 1, 2
"""The kinds of answers: a result, the traceback of an exception, or the reason why no process was started."""


def packed(value: object) -> bytes:
    """The value as bytes. Subclasses of str, such as addresses, become str. Raises ValueError for other objects."""
    try:
        return marshal.dumps(cast(Any, value))
    except ValueError:
        return marshal.dumps(cast(Any, _plain(value)))


def _plain(value: object) -> object:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, tuple | list):
        return type(value)(map(_plain, value)) if type(value) in (tuple, list) else tuple(map(_plain, value))
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    return value


def framed(value: object) -> bytes:
    """The packed value, preceded by its size. Raises ValueError for objects that are no plain data."""
    body = packed(value)
    return len(body).to_bytes(SIZE_BYTES, "little") + body


def send(fd: int, value: object) -> None:
    """Writes one framed value. Raises OSError, ValueError."""
    data = framed(value)
    while data:
        data = data[os.write(fd, data) :]


class Frames:
    """Assembles framed values from chunks."""

    def __init__(self) -> None:
        self._received = b""

    def add(self, chunk: bytes) -> Iterator[Any]:
        """Yields the values that the chunk completes."""
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


def name_of(function: Callable[..., object]) -> str:
    """The name of a function as `module:name`. Raises TypeError for one that cannot be imported by name."""
    module, name = function.__module__, function.__qualname__
    if "<" in name or named(f"{module}:{name}") is not function:
        raise TypeError(f"{module}.{name} is no function or class of a module: a worker could not import it")
    return f"{module}:{name}"


def named(name: str) -> Callable[..., Any]:
    """The function for a name from `name_of`."""
    module, _, path = name.partition(":")
    value: Any = import_module(module)
    for part in path.split("."):
        value = getattr(value, part)
    return cast(Callable[..., Any], value)


def module_of(name: str) -> str:
    """The module part of a name from `name_of`."""
    return name.partition(":")[0]


def pair(kind: int) -> tuple[_socket.socket, _socket.socket]:
    """Two connected sockets with close-on-exec. Raises OSError."""
    return _socket.socketpair(_socket.AF_UNIX, kind)


def send_message(sock: _socket.socket, data: bytes, fds: Sequence[int] = ()) -> None:
    """Sends `data` with copies of the descriptors. Raises OSError."""
    numbers = b"".join(fd.to_bytes(_INT_BYTES, sys.byteorder) for fd in fds)
    beside = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, numbers)] if fds else []
    sent = sock.sendmsg([data], beside, _socket.MSG_NOSIGNAL)
    while sent < len(data):  # only on a stream
        sent += sock.send(data[sent:], _socket.MSG_NOSIGNAL)


def receive_message(sock: _socket.socket, most: int) -> tuple[bytes, list[int]]:
    """The next message (or chunk of a stream) with its descriptors; empty at the end. Raises OSError."""
    space = _socket.CMSG_SPACE(_DESCRIPTORS * _INT_BYTES)
    data, beside, _, _ = sock.recvmsg(most, space, _socket.MSG_CMSG_CLOEXEC)
    fds = [
        int.from_bytes(numbers[at : at + _INT_BYTES], sys.byteorder)
        for level, kind, numbers in beside
        if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS)
        for at in range(0, len(numbers) - len(numbers) % _INT_BYTES, _INT_BYTES)
    ]
    return data, fds


class Page:
    """Shared memory with the state of a worker, readable while the worker is blocked. The question follows it.

    `moves`: counted up during a long read of one subject. `at`: the index of the subject that is read. `pid` and
    `began` (clock ticks after boot): the worker process, 0 until it runs. `reading`: set by the caller while only a
    read is in progress, so that the worker may be killed. `writing`: set while a write is in progress, so that the
    server does not wait for the worker."""

    _AT, _PID, _BEGAN, _READING, _WRITING, _MOVES = (slice(n * SIZE_BYTES, (n + 1) * SIZE_BYTES) for n in range(6))
    BYTES = 6 * SIZE_BYTES

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, self.BYTES)

    @classmethod
    def create(cls, question: object, *, reading: bool) -> tuple[int, Page]:
        """Creates a page with this question; returns its descriptor and the page. Raises OSError."""
        fd = os.memfd_create("vfioctl-worker", os.MFD_CLOEXEC)
        try:
            data = bytes(cls.BYTES) + packed(question)
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
        """The question in the page with this descriptor."""
        with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as memory:
            return marshal.loads(memory[cls.BYTES :])

    def _get(self, place: slice) -> int:
        return int.from_bytes(self._memory[place], "little")

    def _set(self, place: slice, value: int) -> None:
        self._memory[place] = value.to_bytes(SIZE_BYTES, "little")

    at = property(lambda self: self._get(self._AT), lambda self, value: self._set(self._AT, value))
    moves = property(lambda self: self._get(self._MOVES), lambda self, value: self._set(self._MOVES, value))
    pid = property(lambda self: self._get(self._PID), lambda self, value: self._set(self._PID, value))
    began = property(lambda self: self._get(self._BEGAN), lambda self, value: self._set(self._BEGAN, value))
    writing = property(lambda self: self._get(self._WRITING) != 0, lambda self, value: self._set(self._WRITING, value))
    reading = property(lambda self: self._get(self._READING) != 0, lambda self, value: self._set(self._READING, value))

    def close(self) -> None:
        self._memory.close()
