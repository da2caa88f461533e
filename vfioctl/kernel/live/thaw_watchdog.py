"""Thaws control groups when the process that froze them has ended: the client, and the program that does it. It is in
no group that is frozen, keeps the groups open, and writes only `0` to the cgroup.freeze of those announced to it.

Lines to it: `+SECONDS PATH` before PATH is frozen, answered with `ok` or an errno; `-PATH` when it is thawed. It thaws
all at the end of its input, and for SIGTERM; a single one when its seconds are over."""

from __future__ import annotations

import errno as errnos
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import IO

from vfioctl.errors import HostError, KernelRefused
from vfioctl.kernel.files import read_up_to, write_once
from vfioctl.kernel.gpu_sharing import ENDED
from vfioctl.kernel.live.control_groups import FREEZE, checked
from vfioctl.kernel.worker.client import handles

RECORD = "/run/vfioctl/frozen-groups"
"""The groups that are announced, one path a line, in case that the program is killed, too."""
_OK, _LONGEST_LINE, _MOST_RECORD = b"ok\n", 8192, 1 << 20
_ANSWER_SECONDS, _END_SECONDS = 30.0, 5.0  # a busy host starts the watchdog late
_LEAST_OOM_SCORE = "-1000"


class LiveThawWatchdog:
    """See `vfioctl.kernel.gpu_sharing.ThawWatchdog`. `root`: where the hierarchy of version 2 is mounted."""

    def __init__(self, root: str, record: str = RECORD) -> None:
        """Raises HostError if the program cannot be started."""
        start = "import sys; sys.path[:] = sys.argv[3:]\n"
        start += f"from {__name__} import main; sys.exit(main(sys.argv[1], sys.argv[2]))"
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", start, root, record, *sys.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the one who freezes
            )
        except OSError as error:
            raise HostError(f"the watchdog that thaws cannot be started: {error.strerror}") from None
        handles.add(self)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def announce(self, path: str, seconds: float) -> None:
        self._send(f"+{seconds:.3f} {checked(path)}\n")
        stdout = _stream(self._process.stdout)
        answers = select.poll()  # not select: the descriptor may be above 1023
        answers.register(stdout, select.POLLIN)
        if not answers.poll(1000 * _ANSWER_SECONDS):
            raise HostError(f"the watchdog that thaws did not answer within {_ANSWER_SECONDS:g} s")
        answer = os.read(stdout.fileno(), _LONGEST_LINE)
        if answer[:-1].isdigit():
            raise KernelRefused(f"{path}/{FREEZE}", int(answer), "0")
        if answer != _OK:
            raise HostError("the watchdog that thaws has ended")

    def retract(self, path: str) -> None:
        with suppress(HostError):  # it has ended, and has thawed the group
            self._send(f"-{checked(path)}\n")

    def _send(self, line: str) -> None:
        try:
            os.write(_stream(self._process.stdin).fileno(), os.fsencode(line))
        except (OSError, ValueError) as error:
            raise HostError(f"the watchdog that thaws has ended: {error}") from None

    def close(self) -> None:
        """End it, and wait until it has thawed what is announced."""
        self.forget()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)

    def forget(self) -> None:
        """Called in a fork of the process, too: with a copy of the pipe, the watchdog would not see this one end."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream:
                with suppress(OSError):
                    stream.close()


def _stream(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream


def thaw_abandoned(root: str, record: str = RECORD) -> Mapping[str, str]:
    """See `GpuSharing.thaw_abandoned`."""
    try:
        with open(record, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)) as file:
            paths = os.fsdecode(read_up_to(file.fileno(), _MOST_RECORD)).split("\n")
    except FileNotFoundError:
        return {}
    except OSError as error:
        return {record: error.strerror or "cannot be read"}
    done = {path: _thawed(root, path) for path in paths if _is_group(path)}
    with suppress(OSError):
        _write(record, [path for path, why in done.items() if why])
    return done


def _is_group(path: str) -> bool:
    try:
        return bool(checked(path))
    except KernelRefused:
        return False


def _thawed(root: str, path: str) -> str:
    try:
        fd = _opened(root, path)
    except FileNotFoundError:
        return ""  # it is gone, with its processes
    except OSError as error:
        return error.strerror or "cannot be opened"
    return _thaw(fd)


def _opened(root: str, path: str) -> int:
    try:
        return os.open(f"{root}{checked(path)}/{FREEZE}", os.O_WRONLY | os.O_CLOEXEC)
    except KernelRefused as refused:
        raise OSError(refused.errno, os.strerror(refused.errno)) from None


def _thaw(fd: int) -> str:
    """Return why a group could not be thawed; empty if it was, or is gone. Closes its descriptor."""
    try:
        os.write(fd, b"0")
    except OSError as error:
        return "" if error.errno in ENDED else error.strerror or "cannot be written"
    finally:
        os.close(fd)
    return ""


def _write(record: str, paths: Collection[str]) -> None:
    """Replace the record; without paths there is none. Raises OSError."""
    if not paths:
        os.unlink(record)
        return
    new = f"{record}.new"
    with suppress(FileNotFoundError):
        os.unlink(new)
    os.makedirs(os.path.dirname(new), mode=0o755, exist_ok=True)
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, os.fsencode("".join(f"{path}\n" for path in paths)))
    finally:
        os.close(fd)
    os.rename(new, record)


class _Announced:
    """The groups that are or may be frozen, with their descriptor and when to thaw them."""

    def __init__(self, root: str, record: str) -> None:
        self._root, self._record = root, record
        self._groups: dict[str, tuple[int, float]] = {}

    @property
    def first(self) -> float | None:
        """When the first is to be thawed, on the monotonic clock; None without any."""
        return min((until for _, until in self._groups.values()), default=None)

    def take(self, line: str) -> bytes:
        """Obey a line; return the answer, if it wants one."""
        if line.startswith("-"):
            fd, _ = self._groups.pop(line[1:], (-1, 0.0))
            if fd >= 0:
                os.close(fd)
                self._keep()
            return b""
        seconds, _, path = line[1:].partition(" ")
        try:
            fd = self._groups[path][0] if path in self._groups else _opened(self._root, path)
            self._groups[path] = fd, time.monotonic() + float(seconds)
            _write(self._record, self._groups)
        except (OSError, ValueError) as error:
            # without a record, a watchdog that is killed itself would leave the group frozen
            if path in self._groups:
                os.close(self._groups.pop(path)[0])
            return b"%d\n" % (getattr(error, "errno", 0) or errnos.EINVAL)
        return _OK

    def _keep(self) -> None:
        with suppress(OSError):  # it may name a group too many
            _write(self._record, self._groups)

    def thaw(self, *, only_late: bool = False) -> None:
        """Thaw all, or those whose time is over."""
        now = time.monotonic()
        due = [path for path, (_, until) in self._groups.items() if not only_late or until <= now]
        for path in due:
            _thaw(self._groups.pop(path)[0])
        if due:
            self._keep()


def main(root: str, record: str) -> int:
    """Watch standard input. Returns the exit status."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGTERM, lambda *_: None)
    for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
        signal.signal(ignored, signal.SIG_IGN)
    _survive()
    announced = _Announced(root, record)
    try:
        _obey(announced, woken)
    finally:
        announced.thaw()
    return 0


def _obey(announced: _Announced, woken: int) -> None:
    rest = b""
    while True:
        until = announced.first
        wait = None if until is None else max(0.0, until - time.monotonic())
        ready, _, _ = select.select([0, woken], [], [], wait)
        data = os.read(0, _LONGEST_LINE) if 0 in ready else None
        if woken in ready or data == b"":
            return
        *lines, rest = (rest + (data or b"")).split(b"\n")
        for line in lines:
            answer = announced.take(os.fsdecode(line))
            with suppress(OSError):  # nobody reads it any more: the end of the input is next
                os.write(1, answer)
        announced.thaw(only_late=True)


def _survive() -> None:
    """Have the kernel end other processes first when memory runs out."""
    write_once("/proc/self/oom_score_adj", _LEAST_OOM_SCORE)  # an ordinary user may not
