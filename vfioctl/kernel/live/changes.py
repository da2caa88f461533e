"""Changing this machine, one change at a time: the part of `Live` no listing needs.

Whatever can block is written by a deputy, or in a child. Its parts are imported when they are asked for: a listing is
to be quick.
"""

from __future__ import annotations

import errno as errnos
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from vfioctl.errors import HostError, KernelRefused
from vfioctl.kernel import files
from vfioctl.kernel.lock import held, is_of, opened
from vfioctl.kernel.timeouts import Timeouts
from vfioctl.kernel.worker import child as expendable

if TYPE_CHECKING:
    from vfioctl.kernel.worker.writer import Deputy

T = TypeVar("T")
VFIO_GROUP_FLAGS_VIABLE = 1
_FOR_A_GROUP = 5.0


class _Prepared(NamedTuple):
    """A lock that was opened, and not taken yet."""

    lock: Path
    fd: int


class LiveChange:
    """`_read_only`: nothing is changed, and everything that would be is refused."""

    _read_only: bool
    _timeouts: Timeouts

    def __init__(self) -> None:
        self._lock_fds: list[int] = []
        self._at_hand: Deputy | None = None
        self._verdicts: Path | None = None
        self._prepared: _Prepared | None = None

    @property
    def read_only(self) -> str:
        return "a directory given with --root is read-only" if self._read_only else ""

    if TYPE_CHECKING:

        def _at(self, path: str) -> str: ...

    def write(self, path: str, value: str) -> None:
        if self._read_only:
            raise KernelRefused(path, errnos.EROFS, value)
        from vfioctl.kernel.live.stuck import write_never_returned
        from vfioctl.kernel.worker.writer import Deputy

        for_this_alone = not (self._deputy or self._lock_fds)
        if self._deputy is None:
            self._at_hand = Deputy(self, self._lock_fds, self._verdicts)
        try:
            errno = self._ask_deputy(lambda deputy: deputy.write(path, value, deadline=self._timeouts.of(path)))
        except expendable.Unreturned as error:
            raise write_never_returned(path, value, error) from None
        except ChildProcessError:
            raise HostError(
                f"the process that wrote {value!r} to {path} was killed", hint="dmesg says if memory ran out"
            ) from None
        finally:
            if for_this_alone:
                self._dismiss()
        if errno:
            raise KernelRefused(path, errno, value)

    def replace_file(self, path: str, text: str | None) -> None:
        if self._read_only:
            raise HostError(f"{path} cannot be written: {self.read_only}")
        try:
            files.replace_file(path, text)
        except OSError as error:
            failure = HostError(f"{path} could not be {'removed' if text is None else 'written'}")
            failure.kernel_said = f"{files.symbol(error.errno or errnos.EIO)}: {error.strerror}"
            raise failure from None

    def manage_vfs(self, address: str, *, on: bool) -> str:
        if self._read_only:
            raise HostError(f"the VFs of {address} cannot be changed: {self.read_only}")
        from vfioctl.kernel.live.services import MANAGE_SECONDS, manage_vfs

        deadline = self._timeouts.steps.get("sriov-manage", MANAGE_SECONDS)
        return manage_vfs(address, on=on, deadline=deadline, keep=self._lock_fds)

    def write_ended(self, ticket: str) -> str | None:
        from vfioctl.kernel.worker.writer import write_ended

        return write_ended(ticket, self._verdicts)

    def load(self, module: str) -> None:
        if self._read_only:
            raise HostError(f"cannot load {module}: {self.read_only}")
        from vfioctl.kernel.live.services import load_module

        load_module(module, deadline=self._timeouts.load, keep=self._lock_fds)

    def persist(self, address: str, *, on: bool) -> None:
        if self._read_only:
            raise HostError(f"the persistence mode of {address} cannot be set: {self.read_only}")
        from vfioctl.kernel.live.services import persist

        persist(address, on=on, deadline=self._timeouts.default, keep=self._lock_fds)

    def set_unit(self, name: str, *, active: bool) -> None:
        if self._read_only:
            raise HostError(f"{name} cannot be {'started' if active else 'stopped'}: {self.read_only}")
        from vfioctl.kernel.live.services import UNIT_SECONDS, set_unit

        deadline = self._timeouts.steps.get("unit", UNIT_SECONDS)
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
        if self._deputy is None:
            flags: tuple[int, int] = expendable.call(lambda: files.group_flags(path), deadline=_FOR_A_GROUP)
            return flags
        return self._ask_deputy(lambda deputy: deputy.group_flags(path, deadline=_FOR_A_GROUP))

    # -- the deputy --------------------------------------------------------------------------------

    def prepare(self, lock: Path) -> None:
        if self._read_only or self._deputy:
            return
        from vfioctl.kernel.worker.writer import Deputy

        # The deputy is to have the lock too, however this process ends. It is that of the open file, not of a process:
        # taken later, it is the deputy's as well.
        self._unprepare()
        fd = opened(lock)
        if fd is not None:
            self._prepared = _Prepared(lock, fd)
            self._at_hand = Deputy(self, [fd], _verdicts_of(lock))

    @property
    def _deputy(self) -> Deputy | None:
        """None in a child of the process that has it: there, it would answer two at once."""
        if self._at_hand and self._at_hand.helps != os.getpid():
            self._dismiss()
        return self._at_hand

    def _ask_deputy(self, ask: Callable[[Deputy], T]) -> T:
        """Raises Unreturned or ChildProcessError; there is no deputy then any more."""
        assert self._at_hand
        try:
            return ask(self._at_hand)
        except (expendable.Unreturned, ChildProcessError):
            self._dismiss()
            raise

    def _dismiss(self) -> None:
        """It ends by itself, at the latest when what it does has returned."""
        if self._at_hand:
            self._at_hand.close()
        self._at_hand = None

    def _unprepare(self) -> None:
        self._dismiss()
        if self._prepared:
            os.close(self._prepared.fd)
        self._prepared = None

    @contextmanager
    def exclusive(self, lock: Path, *, wait: float) -> Iterator[None]:
        from vfioctl.kernel.worker.writer import Deputy

        if not (self._deputy and self._prepared and self._prepared.lock == lock and is_of(self._prepared.fd, lock)):
            self._unprepare()  # a deputy that has not this lock is of no use
        first = self._deputy
        try:
            with held(lock, wait=wait, fd=self._prepared.fd if self._prepared else None) as fd:
                # A write in flight keeps the lock should this process die: nobody then probes a half-done state.
                self._lock_fds.append(fd)
                self._verdicts = _verdicts_of(lock)
                try:
                    if not (self._read_only or self._deputy):
                        # it starts while the journal is written
                        self._at_hand = Deputy(self, self._lock_fds, self._verdicts)
                    yield
                finally:
                    self._lock_fds.remove(fd)
        finally:
            if not (self._prepared and self._deputy is first):
                self._unprepare()  # one that was given up has this lock's open file, and the next change has another

    def __del__(self) -> None:
        try:  # noqa: SIM105 - suppress itself is gone when the interpreter ends
            self._unprepare()
        except Exception:  # noqa: BLE001, S110 - or it was never made whole
            pass


def _verdicts_of(lock: Path) -> Path:
    return lock.with_suffix(".verdicts")
