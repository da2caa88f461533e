"""This machine, or a captured root directory (read-only): files, one ioctl, modprobe, udev and NVML.

Every errno becomes KernelRefused. What can block is done by `expendable`. What a listing does not need is imported when
it is asked for: a listing is to be quick.
"""

from __future__ import annotations

import errno as errnos
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from vfioctl.errors import HostError, KernelRefused
from vfioctl.kernel import expendable, files, survey
from vfioctl.kernel.deadlines import Deadlines
from vfioctl.kernel.live_use import LiveUse, refused
from vfioctl.kernel.lock import held
from vfioctl.kernel.paths import resolve
from vfioctl.kernel.seam import (
    EVERY_LINK,
    Directory,
    NvmlAnswer,
    Prefixes,
    Unanswered,
)

if TYPE_CHECKING:
    from vfioctl.kernel.writer import Writer

T = TypeVar("T")
VFIO_GROUP_FLAGS_VIABLE = 1
_FOR_A_GROUP = 5.0
_FEW = 1000  # up to here a second child would cost more, in looking up names again, than it saves


class Live(LiveUse):
    """A machine's own files. `root` other than / is a captured tree: its links stay inside it.

    `patience`: seconds for a read to make progress.
    """

    def __init__(
        self,
        root: str = "/",
        *,
        read_only: bool = False,
        deadlines: Deadlines | None = None,
        patience: float = 2.0,
    ) -> None:
        self._root = root.rstrip("/")
        self._read_only = read_only or bool(self._root)
        self._deadlines, self._patience = deadlines or Deadlines(), patience
        self._lock_fds: list[int] = []
        self._writer: Writer | None = None
        self._verdicts: Path | None = None

    @property
    def description(self) -> str:
        return f"the files under {self._root}" if self._root else "this machine"

    @property
    def read_only(self) -> str:
        return "a directory given with --root is read-only" if self._read_only else ""

    # -- reading -----------------------------------------------------------------------------------

    def read(self, path: str) -> str:
        try:
            there = self._at(path)
            if self._root:
                files.refuse_odd(there)
            return files.read_text(there)
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
        try:
            fd = os.open(self._at(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise refused(path, error) from None
        try:
            return files.read_directory(fd, wanted, links)
        finally:
            os.close(fd)

    def texts_below(self, path: str, name: str) -> Directory:
        try:
            fd = os.open(self._at(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise refused(path, error) from None
        try:
            return files.read_texts_below(fd, name, strictly=bool(self._root))
        finally:
            os.close(fd)

    def survey(
        self, read_one: Callable[[str], T], subjects: Iterable[str], *, patience: float | None = None
    ) -> Iterator[tuple[str, T | Unanswered]]:
        todo = [str(subject) for subject in subjects]  # what goes to a child and back must be plain
        children = min(4, len(os.sched_getaffinity(0))) if len(todo) > _FEW else 1
        answers = survey.each(read_one, todo, patience=patience or self._patience, children=children)
        return ((s, Unanswered(str(result)) if isinstance(result, Exception) else result) for s, result in answers)

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

    # -- what no file says -------------------------------------------------------------------------

    def properties(self, modalias: str) -> Mapping[str, str]:
        return self._hardware_database(modalias)

    @cached_property
    def _hardware_database(self) -> Callable[[str], Mapping[str, str]]:
        from vfioctl.kernel.hwdb import hardware_database

        return hardware_database()

    def nvml(self) -> Callable[[], NvmlAnswer]:
        from vfioctl.kernel.nvml import read_gpus

        if self._root:
            return lambda: Unanswered("a captured directory has no NVML")
        return partial(_nvml_answer, expendable.begin(read_gpus, deadline=5.0))

    # -- changing ----------------------------------------------------------------------------------

    def write(self, path: str, value: str) -> None:
        if self._read_only:
            raise KernelRefused(path, errnos.EROFS, value)
        from vfioctl.kernel.late import write_never_returned
        from vfioctl.kernel.writer import Writer

        writer = self._writer or Writer(self._lock_fds, self._verdicts)
        if self._lock_fds:
            self._writer = writer  # for the whole of the change
        try:
            errno = writer.write(path, value, deadline=self._deadlines.of(path))
        except (expendable.Unreturned, ChildProcessError) as error:
            self._writer = None
            writer.close()
            if isinstance(error, expendable.Unreturned):
                raise write_never_returned(path, value, error) from None
            raise HostError(
                f"the process that wrote {value!r} to {path} was killed", hint="dmesg says if memory ran out"
            ) from None
        if self._writer is None:
            writer.close()
        if errno:
            raise KernelRefused(path, errno, value)

    def keep(self, path: str, text: str | None) -> None:
        if self._read_only:
            raise HostError(f"{path} cannot be written: {self.read_only}")
        try:
            files.keep(path, text)
        except OSError as error:
            failure = HostError(f"{path} could not be {'removed' if text is None else 'written'}")
            failure.kernel_said = f"{files.symbol(error.errno or errnos.EIO)}: {error.strerror}"
            raise failure from None

    def manage_vfs(self, address: str, *, on: bool) -> str:
        if self._read_only:
            raise HostError(f"the VFs of {address} cannot be changed: {self.read_only}")
        from vfioctl.kernel.services import MANAGE_SECONDS, manage_vfs

        deadline = self._deadlines.steps.get("sriov-manage", MANAGE_SECONDS)
        return manage_vfs(address, on=on, deadline=deadline, keep=self._lock_fds)

    def write_ended(self, ticket: str) -> str | None:
        from vfioctl.kernel.writer import write_ended

        return write_ended(ticket, self._verdicts)

    def load(self, module: str) -> None:
        if self._read_only:
            raise HostError(f"cannot load {module}: {self.read_only}")
        from vfioctl.kernel.services import load_module

        load_module(module, deadline=self._deadlines.load, keep=self._lock_fds)

    def persist(self, address: str, *, on: bool) -> None:
        if self._read_only:
            raise HostError(f"the persistence mode of {address} cannot be set: {self.read_only}")
        from vfioctl.kernel.services import persist

        persist(address, on=on, deadline=self._deadlines.default, keep=self._lock_fds)

    def set_unit(self, name: str, *, active: bool) -> None:
        if self._read_only:
            raise HostError(f"{name} cannot be {'started' if active else 'stopped'}: {self.read_only}")
        from vfioctl.kernel.services import UNIT_SECONDS, set_unit

        deadline = self._deadlines.steps.get("unit", UNIT_SECONDS)
        set_unit(name, active=active, deadline=deadline, keep=self._lock_fds)

    def viable(self, group: int) -> bool:
        path = f"/dev/vfio/{group}"
        try:
            errno, flags = self._group_flags(self._at(path))
        except expendable.Unreturned:
            errno, flags = errnos.EBUSY, 0  # somebody is in it, or leaves it just now
        if errno:
            raise KernelRefused(path, errno)
        return bool(flags & VFIO_GROUP_FLAGS_VIABLE)

    def _group_flags(self, path: str) -> tuple[int, int]:
        if self._writer is None:
            flags: tuple[int, int] = expendable.call(lambda: files.group_flags(path), deadline=_FOR_A_GROUP)
            return flags
        try:
            return self._writer.group_flags(path, deadline=_FOR_A_GROUP)
        except (expendable.Unreturned, ChildProcessError):
            self._writer.close()
            self._writer = None
            raise

    @contextmanager
    def exclusive(self, lock: Path, *, wait: float) -> Iterator[None]:
        from vfioctl.kernel.writer import Writer

        with held(lock, wait=wait) as fd:
            # A write in flight keeps the lock should this process die: nobody then probes a half-done state.
            self._lock_fds.append(fd)
            self._verdicts = lock.with_suffix(".verdicts")
            try:
                if not self._read_only:
                    self._writer = Writer(self._lock_fds, self._verdicts)  # it starts while the journal is written
                yield
            finally:
                self._lock_fds.remove(fd)
                if self._writer:
                    self._writer.close()
                self._writer = None


def _nvml_answer(wait: Callable[[], Any]) -> NvmlAnswer:
    try:
        answer: Mapping[str, Mapping[str, str]] | str = wait()
    except (expendable.Unreturned, ChildProcessError, RuntimeError) as error:
        return Unanswered(str(error).strip().splitlines()[-1])
    return Unanswered(answer) if isinstance(answer, str) else answer
