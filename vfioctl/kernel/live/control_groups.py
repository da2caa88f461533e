"""The control groups (version 2) of this machine, and which one a process is in. Writes cgroup.freeze only."""

from __future__ import annotations

import errno as errnos
import os
import resource
import select
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from vfioctl.errors import HostError, KernelRefused
from vfioctl.kernel.descriptors import closing
from vfioctl.kernel.files import READ, read_bytes, read_text, write_once
from vfioctl.kernel.gpu_sharing import ENDED, GroupState

ROOTS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
"""Where version 2 is mounted, alone or beside version 1."""
PROC = "/proc"
FREEZE, EVENTS, MEMBERS = "cgroup.freeze", "cgroup.events", "cgroup.procs"
_UNIFIED = "0::"
_DELETED = " (deleted)"
_FIRST_PAUSE, _LONGEST_PAUSE = 20e-6, 1e-3
_MOST_MEMBERS = 1 << 22
_DEEPEST = 64
"""Levels below a group. Each file below takes the kernel as many steps, for each look."""


def checked(path: str) -> str:
    """Return the path of a group. Raises KernelRefused (EINVAL) for one that leads elsewhere, and for the root."""
    names = path.split("/")[1:]
    if not path.startswith("/") or "\0" in path or "\n" in path or not all(names) or {".", ".."} & set(names):
        raise KernelRefused(path, errnos.EINVAL)
    return path


def hierarchy() -> str:
    """Return where version 2 is mounted. Raises HostError."""
    for root in ROOTS:
        if os.path.exists(f"{root}/cgroup.controllers"):
            return root
    raise HostError(
        "this machine has no control groups of version 2", hint="boot with systemd.unified_cgroup_hierarchy=1"
    )


class LiveControlGroups:
    """See `vfioctl.kernel.gpu_sharing.ControlGroups`. `root`: where the hierarchy is mounted.

    The freezer is asked directly, not in a worker: the kernel takes the lock of the hierarchy and marks the processes,
    and does not wait for them (cgroup_freeze, kernel/cgroup/freezer.c)."""

    def __init__(self, root: str, proc: str = PROC) -> None:
        self._root, self._proc = root, proc

    def own(self) -> str:
        path = group_in(read_text(f"{self._proc}/self/cgroup"))
        if path is None:
            raise HostError("this process is in no control group of version 2 that it can see")
        return path

    def processes(self, path: str) -> Sequence[int]:
        found: dict[int, None] = {}
        top = f"{self._root}{path if path == '/' else checked(path)}"
        for index, directory in enumerate(_directories(top, skip_deep=path == "/")):
            try:
                found.update(dict.fromkeys(map(int, read_bytes(f"{directory}/{MEMBERS}", _MOST_MEMBERS).split())))
            except OSError as error:
                # a threaded group: its processes are those of the group above (cgroup-v2.rst, "Threads")
                passed = error.errno == errnos.EOPNOTSUPP or (path == "/" and error.errno == errnos.ENAMETOOLONG)
                if not passed and (index == 0 or error.errno not in ENDED):
                    raise KernelRefused(directory, error.errno or errnos.EIO) from None
        found.pop(0, None)  # of another PID namespace
        return tuple(found)

    def state(self, path: str) -> GroupState:
        try:
            events = read_bytes(f"{self._place(path)}/{EVENTS}").split()
            asked = read_bytes(f"{self._place(path)}/{FREEZE}").strip() == b"1"
        except OSError as error:
            raise KernelRefused(path, error.errno or errnos.EIO) from None
        return GroupState(_after(events, b"populated"), _after(events, b"frozen"), asked)

    def set_frozen(self, path: str, *, frozen: bool) -> None:
        place, value = f"{self._place(path)}/{FREEZE}", "1" if frozen else "0"
        if errno := write_once(place, value):
            raise KernelRefused(place, errno, value)

    def await_frozen(self, path: str, seconds: float, *, frozen: bool = True) -> bool:
        """Asks again and again: the kernel delays its events by up to 10 ms (CGROUP_FILE_NOTIFY_MIN_INTV)."""
        place, until, pause = f"{self._place(path)}/{EVENTS}", time.monotonic() + seconds, _FIRST_PAUSE
        try:
            with closing(os.open(place, READ)) as fd:
                while _after(os.pread(fd, 4096, 0).split(), b"frozen") != frozen:
                    if time.monotonic() > until:
                        return False
                    time.sleep(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE)
        except OSError as error:
            raise KernelRefused(place, error.errno or errnos.EIO) from None
        return True

    def _place(self, path: str) -> str:
        return f"{self._root}{checked(path)}"


def _directories(top: str, *, skip_deep: bool) -> Iterator[str]:
    """Yield a directory and all below it. Users may nest theirs as deep as they like. Raises KernelRefused."""
    left = [(top, 0)]
    while left:
        directory, depth = left.pop()
        yield directory
        names: list[str] = []
        with suppress(OSError), os.scandir(directory) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        if names and depth == _DEEPEST and not skip_deep:
            raise KernelRefused(directory, errnos.ENAMETOOLONG)
        left += [(f"{directory}/{name}", depth + 1) for name in names if depth < _DEEPEST]


def group_in(text: str) -> str | None:
    """Return the path in the text of /proc/PID/cgroup; None if there is none, or it is outside of what is seen."""
    path = f"\n{text}".partition(f"\n{_UNIFIED}")[2].partition("\n")[0].removesuffix(_DELETED)
    return None if not path.startswith("/") or ".." in path.split("/") else path


class LiveProcessGroups:
    """See `vfioctl.kernel.gpu_sharing.ProcessGroups`. A descriptor of each process tells when it has ended, so that a
    number that is given anew is not mistaken. Without descriptors left, nothing is remembered."""

    _SECONDS = 20.0

    def __init__(self, name_of: Callable[[str | None], str], proc: str = PROC) -> None:
        self._name_of, self._proc, self._ended = name_of, proc, select.epoll()
        self._most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2  # the rest is for everything else
        self._known: dict[int, tuple[float, str, float, int]] = {}
        """Until when it is known, name, begin and descriptor, by process."""
        self._pids: dict[int, int] = {}
        """Processes by descriptor."""
        self._last_samples: list[int] = []
        """Processes that had ended at the last refresh: samples of theirs may come until the next one."""
        self._tick = 1 / os.sysconf("SC_CLK_TCK")
        self._now = time.monotonic()

    def refresh(self) -> None:
        self._now = time.monotonic()
        for pid in self._last_samples:
            if pid in self._known:
                self._forget(pid)
        self._last_samples = [self._pids[descriptor] for descriptor, _ in self._ended.poll(0)]

    def name_of(self, pid: int, at: float) -> str:
        """Several calls in a millisecond: see bench/sharing.py."""
        known = self._known.get(pid)
        if known is not None and known[0] >= self._now and known[2] <= at:
            return known[1]
        if known is None or known[0] < self._now:
            known = self._look(pid)
        if known[2] > at and known[3] >= 0:  # the clock may have been set back
            known = self._look(pid, anew=True)
        return known[1] if known[2] <= at else self._name_of(None)

    def _look(self, pid: int, *, anew: bool = False) -> tuple[float, str, float, int]:
        """`anew`: ask again when it began."""
        known = self._known.get(pid)
        descriptor = known[3] if known else _descriptor(pid) if len(self._known) < self._most else -1
        try:
            name = self._name_of(group_in(_start(f"{self._proc}/{pid}/cgroup")))
            begin = known[2] if known and not anew else self._begin(_start(f"{self._proc}/{pid}/stat"))
        except (OSError, ValueError, IndexError):
            if known:
                self._forget(pid)
            elif descriptor >= 0:
                os.close(descriptor)
            return 0.0, self._name_of(None), 0.0, -1
        entry = self._now + self._SECONDS, name, begin, descriptor
        if descriptor >= 0:
            self._known[pid] = entry
        if descriptor >= 0 and not known:
            self._pids[descriptor] = pid
            self._ended.register(descriptor, select.EPOLLIN)
        return entry

    def _begin(self, stat: str) -> float:
        """Return when a process began, in seconds since 1970: a tick of the clock early, which is all that is known.
        `stat`: /proc/PID/stat, field 22; the name of the program may have spaces and brackets."""
        boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        return boot + (int(stat[stat.rindex(")") + 2 :].split()[19]) - 1) * self._tick

    def _forget(self, pid: int) -> None:
        descriptor = self._known.pop(pid)[3]
        del self._pids[descriptor]
        os.close(descriptor)

    def close(self) -> None:
        for pid in [*self._known]:
            self._forget(pid)
        self._ended.close()


def _descriptor(pid: int) -> int:
    with suppress(OSError):
        return os.pidfd_open(pid)
    return -1


def _start(path: str) -> str:
    """Return the text of a file in one read: a path in it is shorter than a page."""
    with closing(os.open(path, READ)) as fd:
        return os.read(fd, 1 << 16).decode("utf-8", "replace")


def _after(words: list[bytes], name: bytes) -> bool:
    return name in words[:-1] and words[words.index(name) + 1] == b"1"
