"""The simulated host behind the seam: a tree, its file, its faults. Touches nothing but that file."""

from __future__ import annotations

import errno as errnos
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from vfioctl.errors import KernelRefused, NotPermitted, Stuck
from vfioctl.kernel.lock import held
from vfioctl.kernel.recorded import Recorded, read_tree
from vfioctl.kernel.simulated import rules
from vfioctl.kernel.simulated.faults import DIE, HANG, Fault, SimulatedDeath
from vfioctl.kernel.tree import Tree, form


class Simulated(Recorded):
    """A recorded host that can be written. With a `file` it is kept there from one command to the next."""

    def __init__(
        self,
        tree: Tree,
        description: str,
        *,
        file: Path | None = None,
        faults: Sequence[Fault] = (),
        die: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(tree, description)
        self._file, self._faults, self._die = file, tuple(faults), die
        self._stamp = _stamp(file) if file else None
        self.writes: list[tuple[str, str]] = []
        rules.remember_natives(tree)

    @classmethod
    def at(cls, file: Path, *, faults: Sequence[Fault] = ()) -> Simulated:
        """The host kept in `file`. A death there is a real one (exit 137). Raises BadDocument."""
        stamp = _stamp(file)  # before it is read: what another process writes meanwhile is then seen
        host = cls(read_tree(file), f"simulated host {file.name}", file=file, faults=faults, die=lambda: os._exit(137))
        host._stamp = stamp
        return host

    @property
    def tree(self) -> Tree:
        """The tree, read again when another process has changed its file."""
        if self._file and (stamp := _stamp(self._file)) != self._stamp:
            self._tree, self._stamp = read_tree(self._file), stamp
            rules.remember_natives(self._tree)
        return self._tree

    @property
    def read_only(self) -> str:
        return ""

    def writable(self, path: str) -> bool:
        return True

    def write(self, path: str, value: str) -> None:
        with self._turn():
            self.writes.append((path, value))
            fault = next((f for f in self._faults if f.at == len(self.writes)), None)
            if fault and fault.errno:
                raise KernelRefused(path, fault.errno, value)
            if fault and fault.kind == HANG:
                raise _never_returned(path, value)
            rules.write(self.tree, path, value)
        if fault and fault.kind == DIE:
            self._end()

    def load(self, module: str) -> None:
        with self._turn():
            rules.load_module(self.tree, module)

    def viable(self, group: int) -> bool:
        return rules.vfio_group_ioctl_get_status(self.tree, group)

    def exclusive(self, lock: Path, *, wait: float) -> AbstractContextManager[None]:
        return _without_descriptor(lock, wait) if self._file else nullcontext()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """One change: read, changed and replaced while no other process does so."""
        if self._file is None:
            yield
            return
        with held(self._file.with_name(self._file.name + ".lock"), wait=10):
            yield
            try:
                replace(self._file, form(self._tree))
            except OSError as error:
                self._stamp = None  # what could not be kept has not happened
                why = f"{self._file} cannot be written: {error.strerror}"
                raise NotPermitted(why, hint="make room for it") from None
            self._stamp = _stamp(self._file)

    def _end(self) -> None:
        if self._die:
            self._die()
        raise SimulatedDeath


def replace(file: Path, text: str) -> None:
    """The file's new text, all of it or none."""
    fd, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    try:
        with open(fd, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.chmod(name, 0o644)
        os.replace(name, file)
    except BaseException:
        os.unlink(name)
        raise


@contextmanager
def _without_descriptor(lock: Path, wait: float) -> Iterator[None]:
    with held(lock, wait=wait):
        yield


def _stamp(file: Path) -> tuple[int, int]:
    try:
        status = file.stat()
    except OSError:
        return 0, 0
    return status.st_ino, status.st_mtime_ns


def _never_returned(path: str, value: str) -> Stuck:
    error = Stuck(
        f"writing {value!r} to {path} did not return",
        hint="something holds the device; the write ends when it lets go, or at the next boot",
        next_command="vfioctl recover",
        facts={"path": path, "errno": errnos.errorcode[errnos.ETIMEDOUT]},
    )
    error.kernel_said = "simulated: the write never returns"
    return error


