"""The simulated host behind the seam: a tree, its file, its faults. Touches nothing but that file."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TypeVar

from vfioctl.errors import HostError, KernelRefused, NotPermitted, Stuck
from vfioctl.kernel.lock import held
from vfioctl.kernel.protocol import EVERY_LINK, PCI_DEVICES, PCI_DRIVERS, Directory, Prefixes, Unanswered
from vfioctl.kernel.recorded.host import Recorded, read_tree, read_with
from vfioctl.kernel.recorded.tree import ROOTS, Tree, form
from vfioctl.kernel.simulated import blocking, rules, surroundings
from vfioctl.kernel.simulated.blocking import MANAGING, UNDER_LOCK, block, blocked, let_go, subject_of
from vfioctl.kernel.simulated.faults import DIE, HANG, Fault, SimulatedDeath
from vfioctl.kernel.simulated.refusal import WouldBlock

T = TypeVar("T")
_KEPT = tuple(root for root in ROOTS if root.startswith("/etc/"))


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

    # -- reading: what is under the lock of a blocked device does not answer ------------------------

    def survey(
        self,
        reader: Callable[..., Callable[[str], T]],
        subjects: Iterable[str],
        *,
        args: Sequence[object] = (),
        timeout: float | None = None,
    ) -> Iterator[tuple[str, T | Unanswered]]:
        del timeout
        read_one = read_with(self, reader, args)
        for subject in subjects:
            try:
                yield subject, read_one(str(subject))
            except WouldBlock:
                yield subject, Unanswered("no answer after 1 s (simulated)")

    def read(self, path: str) -> str:
        self._refuse_blocking(path)
        return super().read(path)

    def directory(self, path: str, wanted: Collection[str], links: Prefixes = EVERY_LINK) -> Directory:
        for name in UNDER_LOCK:
            if name in wanted:
                self._refuse_blocking(f"{path}/{name}")
        return super().directory(path, wanted, links)

    def config(self, address: str) -> bytes:
        self._refuse_blocking(f"{PCI_DEVICES}/{address}/config")
        return super().config(address)

    def rom(self, address: str) -> bytes:
        self._refuse_blocking(f"{PCI_DEVICES}/{address}/rom")
        return super().rom(address)

    def _refuse_blocking(self, path: str) -> None:
        if path.rpartition("/")[2] in UNDER_LOCK and blocked(self.tree, subject_of(path)):
            raise WouldBlock(path)

    # -- changing ----------------------------------------------------------------------------------

    def write(self, path: str, value: str) -> None:
        with self._effect(path, value):
            blocking.write(self.tree, path, value)

    def persist(self, address: str, *, on: bool) -> None:
        with self._effect(f"nvml:{address}", str(int(on))):
            device = self.tree.resolve(f"{PCI_DEVICES}/{address}")
            if f"nvml:{address}" not in self.tree.properties or rules.driver_of(self.tree, device) != "nvidia":
                raise HostError(f"the persistence mode of {address} cannot be set: NVML does not know the GPU")
            surroundings.set_persistence(self.tree, address, on=on)

    def set_unit(self, name: str, *, active: bool) -> None:
        with self._effect(f"unit:{name}", "active" if active else "inactive"):
            if f"unit:{name}" not in self.tree.properties:
                raise HostError(f"{name} cannot be {'started' if active else 'stopped'}: no such unit")
            surroundings.set_unit(self.tree, name, active=active)

    def replace_file(self, path: str, text: str | None) -> None:
        with self._effect(path, text or ""):
            if not path.startswith(_KEPT):
                raise HostError(f"{path} could not be written: a simulated host has no such place")
            there = self.tree.resolve(path, follow_last=False)
            self.tree.remove(there)
            if text is not None:
                self.tree.put(there, text.rstrip("\n"))

    def manage_vfs(self, address: str, *, on: bool) -> str:
        with self._effect(f"{MANAGING}{address}", str(int(on))):
            if f"{PCI_DRIVERS}/nvidia" not in self.tree.directories:
                raise HostError("sriov-manage cannot be run", hint="it comes with NVIDIA's vGPU host driver")
            return blocking.manage_vfs(self.tree, address, on=on)

    def write_ended(self, ticket: str) -> str | None:
        return None if blocked(self.tree, ticket.removeprefix("sim:")) else "returned"

    def let_go(self, subject: str) -> None:
        """For tests: what held a blocked device, or a file that is no device's, has ended."""
        with self._turn():
            let_go(self.tree, subject)

    @contextmanager
    def _effect(self, path: str, value: str) -> Iterator[None]:
        """One thing done to the host; a fault may come in its place, or after it."""
        with self._turn():
            self.writes.append((path, value))
            fault = next((f for f in self._faults if f.at == len(self.writes)), None)
            if fault and fault.errno:
                raise KernelRefused(path, fault.errno, value)
            if (fault and fault.kind == HANG) or blocked(self.tree, subject_of(path, value)):
                raise block(self.tree, path, value)
            yield
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
            try:
                yield
            except Stuck:  # what was begun stays so, in the file too
                self._keep()
                raise
            self._keep()

    def _keep(self) -> None:
        if self._file:
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
