"""The simulated host: implements the kernel protocol on a tree, its file and its faults. Touches only that file."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from vfioctl.errors import HostError, KernelRefused, NotPermitted, Stuck
from vfioctl.kernel.feeds import Feed
from vfioctl.kernel.host_paths import ACCESS_RUN, ALLOWED_RUN, CDI_RUN, MPS_RUN
from vfioctl.kernel.lock import held, held_in_memory
from vfioctl.kernel.protocol import EVERY_LINK, PCI_DEVICES, PCI_DRIVERS, Directory, Prefixes, Unanswered
from vfioctl.kernel.recorded.host import Recorded, read_tree
from vfioctl.kernel.recorded.tree import MOST_BYTES, PERMISSIONS, Tree, form
from vfioctl.kernel.simulated import blocking, class_devices, groups, mps, rules
from vfioctl.kernel.simulated.blocking import MANAGING, UNDER_LOCK, block, blocked, release, step_of, subject_of
from vfioctl.kernel.simulated.device_lists import DeviceTable
from vfioctl.kernel.simulated.faults import DIE, HANG, HANG_THEN_RETURN, SLOW, Fault, SimulatedDeath, WouldBlock
from vfioctl.kernel.simulated.files import BOOT_ID, KEPT_ROOTS, boot_file, rebooted, replace, stamp_of
from vfioctl.kernel.untrusted_files import read_file

T = TypeVar("T")
P = ParamSpec("P")


def _one_thread(read: Callable[Concatenate[Recorded, P], T]) -> Callable[Concatenate[Simulated, P], T]:
    """The same method, which waits while another thread reads or changes the tree."""

    def waiting(host: Simulated, /, *args: P.args, **options: P.kwargs) -> T:
        with host.mutex:
            return read(host, *args, **options)

    return waiting


class Simulated(DeviceTable, mps.SimulatedMps):
    """A recorded host that can be written. With a `file`, changes are kept there from one command to the next."""

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
        self._stamp = stamp_of(file) if file else None
        self.mutex = threading.RLock()
        """One thread at a time reads or changes the tree."""
        self._lock = threading.Lock()
        self.writes: list[tuple[str, str]] = []
        rules.remember_natives(tree)

    @classmethod
    def at(cls, file: Path, *, faults: Sequence[Fault] = ()) -> Simulated:
        """The host in `file`. A fault `die` ends the process (exit code 137). Raises BadDocument."""
        stamp = stamp_of(file)  # before reading, so that a write by another process meanwhile is noticed
        host = cls(read_tree(file), f"simulated host {file.name}", file=file, faults=faults, die=lambda: os._exit(137))
        host._stamp = stamp
        return host

    @property
    def tree(self) -> Tree:
        """The tree, read again when another process has changed its file."""
        with self.mutex:  # a change that another thread is making is in the tree, and not yet in the file
            if self._file and (stamp := stamp_of(self._file)) != self._stamp:
                self._tree, self._stamp = read_tree(self._file), stamp
                rules.remember_natives(self._tree)
            return self._tree

    @property
    def read_only(self) -> str:
        return ""

    @property
    def processes_unknown(self) -> str:
        return ""  # a simulated host is whole: processes that it does not have do not exist

    def writable(self, path: str) -> bool:
        return True

    def _answer_of(self, read: Callable[[str], T], subject: str) -> T | Unanswered:
        try:
            return super()._answer_of(read, subject)
        except WouldBlock:
            return Unanswered("no answer in 1 s (simulated)")

    def read(self, path: str) -> str:
        with self.mutex:
            self._refuse_blocking(path)
            return super().read(path)

    link = _one_thread(Recorded.link)
    children = _one_thread(Recorded.children)
    has = _one_thread(Recorded.has)
    texts_below = _one_thread(Recorded.texts_below)
    open_nodes = _one_thread(Recorded.open_nodes)
    below = _one_thread(Recorded.below)

    def directory(self, path: str, wanted: Collection[str], links: Prefixes = EVERY_LINK) -> Directory:
        with self.mutex:
            for name in UNDER_LOCK:
                if name in wanted:
                    self._refuse_blocking(f"{path}/{name}")
            return super().directory(path, wanted, links)

    def config(self, address: str) -> bytes:
        self._refuse_blocking(f"{PCI_DEVICES}/{address}/config")
        return super().config(address)

    def rom(self, address: str) -> bytes:
        with self._effect(f"{PCI_DEVICES}/{address}/rom", "1"):
            return super().rom(address)

    def _refuse_blocking(self, path: str) -> None:
        if path.rpartition("/")[2] in UNDER_LOCK and blocked(self.tree, subject_of(path)):
            raise WouldBlock(path)

    def write(self, path: str, value: str) -> None:
        with self._effect(path, value):
            blocking.write(self.tree, path, value)

    def persist(self, address: str, *, on: bool) -> None:
        with self._effect(f"nvml:{address}", str(int(on))):
            if reason := self.nvml_error or self.tree.properties.get(f"nvml:{address}", {}).get("error"):
                raise HostError(f"the persistence mode of {address} cannot be set: {reason}")
            device = self.tree.resolve(f"{PCI_DEVICES}/{address}")
            if f"nvml:{address}" not in self.tree.properties or groups.driver_of(self.tree, device) != "nvidia":
                raise HostError(f"the persistence mode of {address} cannot be set: NVML does not know the GPU")
            class_devices.set_persistence(self.tree, address, on=on)

    def set_unit(self, name: str, *, active: bool) -> None:
        with self._effect(f"unit:{name}", "active" if active else "inactive"):
            mps.set_unit(self.tree, name, active=active)
            if f"unit:{name}" not in self.tree.properties:
                raise HostError(f"{name} cannot be {'started' if active else 'stopped'}: no such unit")
            class_devices.set_unit(self.tree, name, active=active)

    def replace_file(self, path: str, text: str | None) -> None:
        with self._effect(path, text or ""):
            if not path.startswith((*KEPT_ROOTS, f"{CDI_RUN}/", f"{ACCESS_RUN}/", f"{ALLOWED_RUN}/", f"{MPS_RUN}/")):
                raise HostError(f"{path} could not be written: a simulated host has no such directory")
            resolved = self.tree.resolve(path, follow_last=False)
            self.tree.remove(resolved)
            if text is not None:
                self.tree.put(resolved, text.rstrip("\n"))

    def replace_link(self, path: str, target: str | None) -> None:
        with self._effect(path, target or ""):
            if not path.startswith(KEPT_ROOTS):
                raise HostError(f"{path} could not be written: a simulated host has no such directory")
            self.tree.remove(path)
            if target is not None:
                self.tree.put_link(path, target)

    def permissions(self, path: str) -> str:
        self.device_number(path)
        value = self.tree.properties.get(f"{PERMISSIONS}{path}", {}).get("value")
        return value or ("0:0:600" if path[-1:].isdigit() else super().permissions(path))

    def set_permissions(self, path: str, value: str) -> None:
        with self._effect(path, value):
            self.device_number(path)
            self.tree.properties[f"{PERMISSIONS}{path}"] = {"value": value}

    def manage_vfs(self, address: str, *, on: bool) -> str:
        with self._effect(f"{MANAGING}{address}", str(int(on))):
            if f"{PCI_DRIVERS}/nvidia" not in self.tree.directories:
                raise HostError("sriov-manage cannot be run", hint="it comes with NVIDIA's vGPU host driver")
            return blocking.manage_vfs(self.tree, address, on=on)

    def uevents(self) -> Feed:
        if self._file is None:
            return Feed()
        from vfioctl.kernel.simulated.feed import FileFeed

        return FileFeed(self._file)

    def gpu_errors(self, gpus: Sequence[str]) -> Feed:
        from vfioctl.kernel.simulated.feed import ErrorFeed

        return ErrorFeed(lambda: self.tree, gpus)

    def write_ended(self, ticket: str) -> str | None:
        return None if blocked(self.tree, ticket.removeprefix("sim:")) else "returned"

    def release(self, subject: str) -> None:
        """For tests: ends the holder of a blocked device or file, so that the write returns."""
        with self._turn():
            release(self.tree, subject)

    def report_xid(self, address: str, xid: int) -> None:
        """For tests: NVML reports a critical error of this GPU."""
        with self._turn():
            facts = self.tree.properties.setdefault(f"sim:{address}", {})
            facts["xids"] = f"{facts.get('xids', '')} {xid}".lstrip()

    def reboot(self, boot_id: str) -> None:
        """Starts the host anew, as it was before its first change. Raises BadDocument."""
        with self._turn():
            at_boot = boot_file(self._file) if self._file else None
            if at_boot and at_boot.exists():
                self._tree = rebooted(self.tree, read_tree(at_boot), boot_id=boot_id)
            else:
                self._tree.put(BOOT_ID, boot_id)

    @contextmanager
    def _effect(self, path: str, value: str) -> Iterator[None]:
        """One change of the host. A fault may delay it, replace it or follow it."""
        fault = next((f for f in self._faults if f.at == len(self.writes) + 1), None)
        limit = self.timeouts.of(step_of(path))
        is_late = fault is not None and (fault.kind == HANG_THEN_RETURN or fault.seconds > limit)
        if fault and fault.kind == SLOW:
            time.sleep(min(fault.seconds, limit))  # meanwhile others read the host as it was
        with self._turn():
            self.writes.append((path, value))
            if fault and fault.errno:
                raise KernelRefused(path, fault.errno, value)
            if (fault and fault.kind == HANG) or blocked(self.tree, subject_of(path, value)):
                raise block(self.tree, path, value)
            if is_late:
                error = block(self.tree, path, value)
                release(self.tree, subject_of(path, value))
                raise error
            yield
        if fault and fault.kind == DIE:
            if self._die:
                self._die()
            raise SimulatedDeath

    def ask_libvirt(self, uri: str, question: str, *words: str) -> Any:
        from vfioctl.kernel.simulated.libvirt import ask

        with self.mutex:
            return ask(self.tree, uri, question, *words)

    def tell_libvirt(self, uri: str, order: str, *words: str) -> None:
        from vfioctl.kernel.simulated.libvirt import tell

        with self._effect(f"libvirt:{order}", ""):
            tell(self.tree, uri, order, *words)

    def load(self, module: str) -> None:
        with self._turn():
            rules.load_module(self.tree, module)

    def viable(self, group: int) -> bool:
        with self.mutex:
            return rules.vfio_group_ioctl_get_status(self.tree, group)

    @contextmanager
    def exclusive(
        self,
        lock: Path,
        *,
        wait: float,
        waiting: Callable[[], None] | None = None,
        check: Callable[[], None] | None = None,
    ) -> Iterator[None]:
        if self._file:
            with held(lock, wait=wait, waiting=waiting, check=check):
                yield
            return
        with held_in_memory(self._lock, wait=wait, waiting=waiting, check=check):
            yield

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """One change: the file is read, changed and replaced while no other process does so."""
        if self._file is None:
            with self.mutex:
                yield
            return
        with held(self._file.with_name(self._file.name + ".lock"), wait=10), self.mutex:
            try:
                yield
            except Stuck:  # the file keeps what the write has already done
                self._keep()
                raise
            self._keep()

    def _keep(self) -> None:
        if self._file:
            try:
                if not boot_file(self._file).exists():
                    replace(boot_file(self._file), read_file(self._file, MOST_BYTES).decode())
                replace(self._file, form(self._tree))
            except OSError as error:
                self._stamp = None  # the tree is read again: a change that was not saved has not happened
                why = f"{self._file} cannot be written: {error.strerror}"
                raise NotPermitted(why, hint="make room for it") from None
            self._stamp = stamp_of(self._file)
