"""The client of the fork server: starts the server on first use, and requests workers from it. A process with one
thread forks the server, which is fastest. A process with several threads executes a new interpreter, because in a fork,
a lock that another thread held would never be released. Thread-safe."""

from __future__ import annotations

import _socket
import marshal
import os
import select
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Protocol
from weakref import WeakSet

from vfioctl.errors import HostError
from vfioctl.kernel.worker.wire import pair, send_message
from vfioctl.signals import deferred

_FD = 3
_START = f"import sys; sys.path[:] = sys.argv[1:]; from vfioctl.kernel.worker.server import main; main({_FD})"
_LONGEST_SEND = 10.0
_LONGEST_END = 10.0
_PAUSE = 0.0005
"""Seconds between checks whether a server has ended that has closed its socket."""

handles: WeakSet[_Handle] = WeakSet()
"""Handles to close in forks of this process: with copies open, the server would not see this process end."""
_uncollected: list[int] = []


class _Handle(Protocol):
    def forget(self) -> None:
        """Called in a fork of the process: closes what belongs to the parent."""


class ForkServer:
    """The fork server of one session. The server ends when its client process ends for any reason."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sock: _socket.socket | None = None
        self._pid = 0
        self._jobs = count(1)
        handles.add(self)

    def run(self, function: str, modules: Sequence[str], fds: Sequence[int]) -> tuple[int, _socket.socket]:
        """Starts a worker; returns its job number and the connection to the server that forked it. `function`: its name
        as `module:name`; `modules`: to import first; `fds`: descriptors that the worker gets. A server that has died is
        restarted. Raises HostError when no server can be started."""
        with deferred(), self._lock:
            job = next(self._jobs)
            request = marshal.dumps(("run", job, function, tuple(modules)))
            for _ in range(2):
                sock = self._sock or self._start()
                try:
                    send_message(sock, request, fds)
                except OSError as error:
                    refused = error.strerror  # not the error, whose traceback would keep this frame and its callers
                    self._leave()
                else:
                    return job, sock
        raise HostError(f"no child process could be started: {refused}")

    def close(self) -> None:
        """Closes the connection, so that the server ends."""
        with deferred(), self._lock:
            self._leave()

    def __del__(self) -> None:
        try:  # noqa: SIM105 - suppress itself is gone when the interpreter ends
            self.close()
        except Exception:  # noqa: BLE001, S110 - and so may be what it needs
            pass

    def forget(self) -> None:
        """Called in a fork of the process: the server belongs to the parent, and must notice when that ends."""
        self._lock = threading.Lock()
        if self._sock:
            self._sock.close()
        self._sock, self._pid = None, 0

    def _leave(self) -> None:
        sock, pid, self._sock, self._pid = self._sock, self._pid, None, 0
        if sock:
            if not sys.is_finalizing():
                _wait_for_end(sock)
            sock.close()
        if pid:
            _collect(pid)

    def _start(self) -> _socket.socket:
        for pid in tuple(_uncollected):
            if _has_ended(pid):
                _uncollected.remove(pid)
        sockets: tuple[_socket.socket, ...] = ()
        try:
            ours, theirs = sockets = pair(_socket.SOCK_SEQPACKET)
            ours.settimeout(_LONGEST_SEND)
            self._pid = _forked(theirs.fileno()) if _has_one_thread() else _executed(theirs.fileno())
        except OSError as error:
            for sock in sockets:
                sock.close()
            raise HostError(f"no child process could be started: {error.strerror}") from None
        theirs.close()
        self._sock = ours
        return ours


def kill(job: int, sock: _socket.socket) -> bool:
    """Has the server kill a worker. Returns False if the server is gone."""
    try:
        send_message(sock, marshal.dumps(("kill", job)))
    except OSError:
        return False
    return True


def _has_one_thread() -> bool:
    """Whether the process has one thread. Counted by the kernel, because Python does not know threads of libraries."""
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False


def _forked(fd: int) -> int:
    pid = os.fork()
    if pid == 0:
        from vfioctl.kernel.worker.server import main

        main(fd)
    return pid


def _executed(fd: int) -> int:
    home = str(Path(__file__).resolve().parents[3])
    paths = [home, *(path or os.getcwd() for path in sys.path)]
    command = [sys.executable, "-I", "-S", "-c", _START, *paths]
    return os.posix_spawn(sys.executable, command, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, fd, _FD)])


def _wait_for_end(sock: _socket.socket) -> None:
    """Asks the server to end, and waits until it has closed its end of the socket: soon, or late on a busy machine."""
    with suppress(OSError):  # the server has died
        sock.shutdown(_socket.SHUT_WR)
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        poll.poll(_LONGEST_END * 1000)


def _collect(pid: int) -> None:
    """Waits for a server to end, so that it does not stay a zombie; not while this process is exiting."""
    until = time.monotonic() + 1.0
    while not _has_ended(pid):
        if sys.is_finalizing():
            return
        if time.monotonic() > until:
            _uncollected.append(pid)
            return
        time.sleep(_PAUSE)


def _has_ended(pid: int) -> bool:
    with suppress(ChildProcessError):  # already collected
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    return True


def _forget_all() -> None:
    _uncollected.clear()
    for handle in tuple(handles):
        handle.forget()


os.register_at_fork(after_in_child=_forget_all)
