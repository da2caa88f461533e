"""Changes to this machine, one at a time: the part of `Live` that no listing needs.

Workers make the calls that can block. Modules are imported when they are used, so that a listing starts quickly.
"""

from __future__ import annotations

import errno as errnos
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vfioctl.errors import HostError, KernelRefused
from vfioctl.kernel import files
from vfioctl.kernel.lock import held
from vfioctl.kernel.timeouts import Timeouts
from vfioctl.kernel.worker.job import Unreturned
from vfioctl.kernel.worker.workers import Workers

VFIO_GROUP_FLAGS_VIABLE = 1
_GROUP_SECONDS = 5.0


class _Locks(threading.local):
    """The descriptors of the locks that a thread holds, which its workers inherit, and the file for verdicts."""

    def __init__(self) -> None:
        self.fds: list[int] = []
        self.verdicts: Path | None = None


class LiveChange:
    """`_read_only`: every change is refused."""

    _read_only: bool
    _timeouts: Timeouts
    _workers: Workers

    def __init__(self) -> None:
        self._locks = _Locks()
        self._verdicts: dict[Path, None] = {}
        """Files that may have the verdicts of writes that were given up; the latest is last."""

    @property
    def read_only(self) -> str:
        return "a directory given with --root is read-only" if self._read_only else ""

    def write(self, path: str, value: str) -> None:
        if self._read_only:
            raise KernelRefused(path, errnos.EROFS, value)
        try:
            errno = self._workers.write(
                path,
                value,
                timeout=self._timeouts.of(path),
                verdicts=self._locks.verdicts,
                locks=self._locks.fds,
            )
        except Unreturned as error:
            from vfioctl.kernel.live.stuck import write_never_returned

            raise write_never_returned(path, value, error) from None
        except ChildProcessError:
            raise HostError(
                f"the process that wrote {value!r} to {path} was killed", hint="dmesg says if memory ran out"
            ) from None
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

        timeout = self._timeouts.steps.get("sriov-manage", MANAGE_SECONDS)
        return manage_vfs(self._workers, address, on=on, timeout=timeout, fds=self._locks.fds)

    def write_ended(self, ticket: str) -> str | None:
        from vfioctl.kernel.worker.verdicts import write_ended

        verdicts = [write_ended(ticket, file) for file in [*self._verdicts][::-1]] or [write_ended(ticket, None)]
        return next((verdict for verdict in verdicts if verdict != "unknown"), "unknown")

    def load(self, module: str) -> None:
        if self._read_only:
            raise HostError(f"cannot load {module}: {self.read_only}")
        from vfioctl.kernel.live.services import load_module

        load_module(self._workers, module, timeout=self._timeouts.load, fds=self._locks.fds)

    def persist(self, address: str, *, on: bool) -> None:
        if self._read_only:
            raise HostError(f"the persistence mode of {address} cannot be set: {self.read_only}")
        from vfioctl.kernel.live.services import persist

        persist(self._workers, address, on=on, timeout=self._timeouts.default, fds=self._locks.fds)

    def set_unit(self, name: str, *, active: bool) -> None:
        if self._read_only:
            raise HostError(f"{name} cannot be {'started' if active else 'stopped'}: {self.read_only}")
        from vfioctl.kernel.live.services import UNIT_SECONDS, set_unit

        timeout = self._timeouts.steps.get("unit", UNIT_SECONDS)
        set_unit(self._workers, name, active=active, timeout=timeout, fds=self._locks.fds)

    def viable(self, group: int) -> bool:
        path = f"/dev/vfio/{group}"
        try:
            errno, flags = self._workers.group_flags(path, timeout=_GROUP_SECONDS)
        except Unreturned:
            errno, flags = errnos.EBUSY, 0  # somebody has it open, or is closing it
        if errno:
            raise KernelRefused(path, errno)
        return bool(flags & VFIO_GROUP_FLAGS_VIABLE)

    def ask_libvirt(self, uri: str, question: str, *words: str) -> Any:
        from vfioctl.kernel.live import domains

        return domains.ask(self._workers, uri, question, words, is_this_machine=not self._read_only)

    def tell_libvirt(self, uri: str, order: str, *words: str) -> None:
        if self._read_only:
            raise HostError(f"libvirt's domains cannot be changed: {self.read_only}")
        from vfioctl.kernel.live import domains

        timeout = self._timeouts.steps.get("libvirt-start" if order == "start" else "libvirt")
        domains.tell(self._workers, uri, order, words, timeout=timeout, fds=self._locks.fds)

    # -- workers -----------------------------------------------------------------------------------

    @contextmanager
    def exclusive(self, lock: Path, *, wait: float) -> Iterator[None]:
        with held(lock, wait=wait) as fd:
            if not self._read_only:
                self._workers.warm()  # the fork server starts while the journal is written
            # a write under way keeps the lock if this process dies, so that nobody probes an intermediate state
            verdicts = lock.with_suffix(".verdicts").absolute()  # workers are in another directory
            before, self._locks.verdicts = self._locks.verdicts, verdicts
            self._locks.fds.append(fd)
            self._verdicts[verdicts] = None
            try:
                yield
            finally:
                self._locks.fds.remove(fd)
                self._locks.verdicts = before

    def close(self) -> None:
        """Ends the workers, at once or when their writes return. Later calls start new ones."""
        self._workers.close()
