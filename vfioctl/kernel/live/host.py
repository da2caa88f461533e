"""This machine, or a captured root directory (read-only): reading its files, and NVML.

Every errno becomes KernelRefused. Workers make the calls that can block. What a listing does not need is imported when
it is used, so that a listing starts quickly.
"""

from __future__ import annotations

import errno as errnos
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import TypeVar

from vfioctl.errors import KernelRefused
from vfioctl.kernel import files
from vfioctl.kernel.live.changes import LiveChange
from vfioctl.kernel.live.use import LiveUse, refused
from vfioctl.kernel.paths import resolve
from vfioctl.kernel.protocol import (
    EVERY_LINK,
    NOT_LISTED,
    Directory,
    NvmlAnswer,
    Prefixes,
    Unanswered,
)
from vfioctl.kernel.timeouts import Timeouts
from vfioctl.kernel.worker.job import Gathered, Unreturned
from vfioctl.kernel.worker.workers import Workers

T = TypeVar("T")
_NVML_SECONDS = 5.0
_FEW = 1000  # for fewer subjects a second worker costs more than it saves: each looks up names again


class Live(LiveUse, LiveChange):
    """A machine's own files. `root` other than / is a captured tree: its links stay inside it.

    `timeout`: seconds without progress after which a read is given up. Any thread may use the object. `close` ends its
    workers.
    """

    def __init__(
        self,
        root: str = "/",
        *,
        read_only: bool = False,
        timeouts: Timeouts | None = None,
        timeout: float = 2.0,
    ) -> None:
        self._root = root.rstrip("/")
        self._read_only = read_only or bool(self._root)
        self._timeouts, self._timeout = timeouts or Timeouts(), timeout
        self._workers = Workers(("vfioctl.kernel.live.host:for_worker", (self._root, self._read_only, timeout)))
        LiveChange.__init__(self)

    @property
    def description(self) -> str:
        return f"the files under {self._root}" if self._root else "this machine"

    # -- reading -----------------------------------------------------------------------------------

    def read(self, path: str) -> str:
        try:
            there = self._at(path)
            if self._root:
                files.refuse_special(there)
            return files.read_text(there, files.MOST_OF_SYSFS if path.startswith("/sys/") else files.MOST_TEXT)
        except OSError as error:
            raise refused(path, error) from None

    def link(self, path: str) -> str:
        try:
            return files.readable(os.readlink(self._at(path, follow_last=False)))
        except OSError as error:
            raise refused(path, error) from None

    def children(self, path: str) -> list[str]:
        try:
            return sorted(map(files.readable, os.listdir(self._at(path))))
        except OSError as error:
            raise refused(path, error) from None

    def has(self, path: str) -> bool:
        try:
            return os.path.lexists(self._at(path))
        except (KernelRefused, OSError):
            return False

    def device_number(self, path: str) -> tuple[str, int, int]:
        try:
            status = os.stat(self._at(path))
        except OSError as error:
            raise refused(path, error) from None
        kind = {stat.S_IFCHR: "c", stat.S_IFBLK: "b"}.get(stat.S_IFMT(status.st_mode))
        if kind is None:
            raise KernelRefused(path, errnos.ENODEV)
        return kind, os.major(status.st_rdev), os.minor(status.st_rdev)

    def writable(self, path: str) -> bool:
        return not self._read_only and os.access(path, os.W_OK)

    def directory(self, path: str, wanted: Collection[str], links: Prefixes = EVERY_LINK) -> Directory:
        with self._opened(path) as fd:
            return files.read_directory(fd, wanted, links)

    def entries(self, path: str, wanted: Collection[str], links: Collection[str]) -> Directory:
        fd = self._open(path)
        try:
            if self._root:  # may hold files that are dangerous to open
                return files.only(files.read_directory(fd, wanted, tuple(links)), wanted, links)
            return files.read_entries(fd, wanted, links)
        finally:
            os.close(fd)

    def texts_below(self, path: str, name: str) -> Directory:
        with self._opened(path) as fd:
            return files.read_texts_below(fd, name, strictly=bool(self._root))

    def survey(
        self,
        reader: Callable[..., Callable[[str], T]],
        subjects: Iterable[str],
        *,
        args: Sequence[object] = (),
        timeout: float | None = None,
    ) -> Iterator[tuple[str, T | Unanswered]]:
        todo = [str(subject) for subject in subjects]  # workers exchange plain data
        workers = min(4, len(os.sched_getaffinity(0))) if len(todo) > _FEW else 1
        answers = self._workers.survey(reader, todo, args, timeout=timeout or self._timeout, workers=workers)
        return ((s, Unanswered(str(result)) if isinstance(result, Exception) else result) for s, result in answers)

    def _open(self, path: str) -> int:
        try:
            return os.open(self._at(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise refused(path, error) from None

    @contextmanager
    def _opened(self, path: str) -> Iterator[int]:
        fd = self._open(path)
        try:
            yield fd
        finally:
            os.close(fd)

    def _at(self, path: str, *, follow_last: bool = True) -> str:
        if "\0" in path:
            raise KernelRefused(path, errnos.EINVAL)
        if not self._root:
            return path
        return self._root + resolve(path, self._readlink_inside, follow_last=follow_last)

    def _readlink_inside(self, path: str) -> str | None:
        try:
            return os.readlink(self._root + path)
        except OSError:
            return None

    # -- what is in no file ------------------------------------------------------------------------

    def properties(self, modalias: str) -> Mapping[str, str]:
        return self._hardware_database(modalias)

    @cached_property
    def _hardware_database(self) -> Callable[[str], Mapping[str, str]]:
        from vfioctl.kernel.live.hwdb import hardware_database

        return hardware_database()

    def nvml(self, gpus: Sequence[str], *, types: bool = False) -> Callable[[], NvmlAnswer]:
        from vfioctl.kernel.live.nvml import read_gpus

        if self._root:
            return lambda: Unanswered("a captured directory has no NVML")
        asked = [str(gpu) for gpu in gpus]  # workers exchange plain data
        return partial(_nvml_answer, asked, self._workers.begin_each(read_gpus, asked, types, timeout=_NVML_SECONDS))


def for_worker(root: str, read_only: bool, timeout: float) -> Live:  # noqa: FBT001 - a worker gets positional arguments
    """The host object that a worker reads with."""
    return Live(root or "/", read_only=read_only, timeout=timeout)


def _nvml_answer(gpus: Iterable[str], wait: Callable[[], Gathered]) -> NvmlAnswer:
    """What arrived in time. A GPU of which nothing arrived has the reason as its `error`."""
    items, error = wait()
    known: dict[str, Mapping[str, str]] = dict(items)
    if "" in known:
        return Unanswered(known[""]["error"])
    reason = _nvml_failure(error) if error else NOT_LISTED
    return {gpu: known.get(gpu, {"error": reason}) for gpu in gpus} if known else Unanswered(reason)


def _nvml_failure(error: Exception) -> str:
    if isinstance(error, Unreturned):
        return f"NVML did not answer within {error.seconds:g} s: dmesg | grep -i nvrm"
    if isinstance(error, ChildProcessError):
        return "NVML crashed: dmesg | tail"
    return "NVML gave an answer that vfioctl does not understand"
