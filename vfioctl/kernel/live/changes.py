"""Changes to this machine, one at a time: the part of `Live` that no listing needs. Workers make the calls that can
block. Modules are imported when they are used, so that a listing starts quickly."""

from __future__ import annotations

import errno as errnos
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vfioctl.errors import HostError, KernelRefused, Stuck
from vfioctl.kernel import files
from vfioctl.kernel.live.permissions import set_permissions
from vfioctl.kernel.live.use import called, never_returned, talked
from vfioctl.kernel.lock import held
from vfioctl.kernel.mps import refuse_order
from vfioctl.kernel.timeouts import Timeouts
from vfioctl.kernel.worker.job import begin
from vfioctl.kernel.worker.processes import write_ended
from vfioctl.kernel.worker.stall import Unreturned
from vfioctl.kernel.worker.workers import Workers

SRIOV_MANAGE = "/usr/lib/nvidia/sriov-manage"
_NOT_FOUND = 127  # exit code of files.run when the command cannot be started
_NVIDIA_HINT = "the NVIDIA driver does not answer: dmesg | tail"
_LIBVIRT_HINT = "systemctl status libvirtd virtqemud says whether it runs; restarting it leaves guests running"


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

    @property
    def timeouts(self) -> Timeouts:
        return self._timeouts

    def write(self, path: str, value: str) -> None:
        if self._read_only:
            raise KernelRefused(path, errnos.EROFS, value)
        try:
            timeout, verdicts, locks = self._timeouts.of(path), self._locks.verdicts, self._locks.fds
            errno = self._workers.write(path, value, timeout=timeout, verdicts=verdicts, locks=locks)
        except Unreturned as error:
            raise _write_never_returned(path, value, error) from None
        except ChildProcessError:
            why = f"the process that wrote {value!r} to {path} was killed"
            raise HostError(why, hint="dmesg says if memory ran out") from None
        if errno:
            raise KernelRefused(path, errno, value)

    def replace_file(self, path: str, text: str | None) -> None:
        self._refuse(f"{path} cannot be written")
        try:
            files.replace_file(path, text)
        except OSError as error:
            said = f"{files.symbol(error.errno or errnos.EIO)}: {error.strerror}"
            raise _failed(f"{path} could not be {'removed' if text is None else 'written'}", said) from None

    def replace_link(self, path: str, target: str | None) -> None:
        self._refuse(f"{path} cannot be created")
        try:
            files.replace_link(path, target)
        except OSError as error:
            said = f"{files.symbol(error.errno or errnos.EIO)}: {error.strerror}"
            raise _failed(f"{path} could not be {'removed' if target is None else 'created'}", said) from None

    def set_permissions(self, path: str, value: str) -> None:
        self._refuse(f"the permissions of {path} cannot be set")
        try:
            set_permissions(path, value)
        except OSError as error:
            raise KernelRefused(path, error.errno or errnos.EIO, value) from None

    def manage_vfs(self, address: str, *, on: bool) -> str:
        self._refuse(f"the VFs of {address} cannot be changed")
        what = f"{SRIOV_MANAGE} {'-e' if on else '-d'} {address}"
        code, output = self._run(what, _NVIDIA_HINT, self._timeouts.of("sriov-manage"), files.run, what.split())
        if code == _NOT_FOUND:  # no other code counts: it can be 0 when nothing was done
            raise _failed(f"{SRIOV_MANAGE} cannot be run", output, hint="it comes with NVIDIA's vGPU host driver")
        return str(output)

    def write_ended(self, ticket: str) -> str | None:
        verdicts = [write_ended(ticket, file) for file in [*self._verdicts][::-1]] or [write_ended(ticket, None)]
        return next((verdict for verdict in verdicts if verdict != "unknown"), "unknown")

    def load(self, module: str) -> None:
        self._refuse(f"cannot load {module}")
        hint = "a driver is attaching to a device that does not answer: dmesg | tail"
        command = ["modprobe", "--", module]
        code, output = self._run(f"modprobe {module}", hint, self._timeouts.load, files.run, command)
        if code:
            hint = "if the kernel was upgraded since the last boot, its modules may be gone: reboot"
            raise _failed(f"module {module} could not be loaded", output, hint=hint)

    def persist(self, address: str, *, on: bool) -> None:
        self._refuse(f"the persistence mode of {address} cannot be set")
        from vfioctl.kernel.live.nvml import set_persistence

        what = f"switching the persistence mode of {address} {'on' if on else 'off'}"
        if reason := self._run(what, _NVIDIA_HINT, self._timeouts.default, set_persistence, address, on):
            raise _failed(f"{what} failed", reason)

    def set_compute_mode(self, address: str, mode: str) -> None:
        self._refuse(f"the compute mode of {address} cannot be set")
        from vfioctl.kernel.live.nvml import set_compute_mode

        what = f"setting the compute mode of {address} to {mode}"
        if reason := self._run(what, _NVIDIA_HINT, self._timeouts.default, set_compute_mode, address, mode):
            raise _failed(f"{what} failed", reason)

    def tell_mps(self, pipes: str, order: str) -> None:
        refuse_order(order)
        self._refuse(f"the MPS daemon at {pipes} cannot be told anything")
        talked(self._workers, pipes, order, fds=self._locks.fds)

    def set_unit(self, name: str, *, active: bool) -> None:
        self._refuse(f"{name} cannot be {'started' if active else 'stopped'}")
        from shlex import quote

        from vfioctl.kernel.live.units import set_active

        what = f"{'starting' if active else 'stopping'} {name}"
        hint = f"systemctl status {quote(name)} says what it waits for"
        code, output = self._run(what, hint, self._timeouts.of("unit"), set_active, name, active)
        if code:
            raise _failed(f"{what} failed", output or f"systemctl ended with {code}")

    def refuse_devices(self, cgroup: str, numbers: Sequence[str]) -> None:
        self._refuse(f"what {cgroup} may open cannot be changed")
        from vfioctl.kernel.live.device_programs import refuse

        refuse(cgroup, numbers)

    def set_unit_devices(self, unit: str, policy: str, allowed: Sequence[str]) -> None:
        self._refuse(f"what {unit} may open cannot be changed")
        from vfioctl.kernel.live.unit_devices import set_devices

        what = f"setting what {unit} may open"
        hint = "systemctl status says whether systemd answers"
        code, output = self._run(what, hint, self._timeouts.of("unit"), set_devices, unit, policy, *allowed)
        if code:
            raise _failed(f"{what} failed", output or f"systemctl ended with {code}")

    def ask_libvirt(self, uri: str, question: str, *words: str) -> Any:
        from vfioctl.kernel.libvirt import answers, domains

        if self._read_only:  # a capture has no libvirt, as a recorded host has none
            return answers.asked_here(uri, question, *words)
        what, ask = answers.doing(question, words), answers.named(question)
        try:
            answer = begin(self._workers.server, ask, uri, *words, timeout=domains.QUESTION_SECONDS)()
        except Unreturned as late:
            why = f"{what}: libvirt at {uri} did not answer within {late.seconds:g} s"
            raise HostError(why, hint=_LIBVIRT_HINT) from None
        except ChildProcessError:
            raise HostError(f"{what}: the process that asked libvirt was killed") from None
        return answers.value_of(answer, uri, question, words)

    def tell_libvirt(self, uri: str, order: str, *words: str) -> None:
        self._refuse("libvirt's domains cannot be changed")
        from vfioctl.kernel.libvirt import answers

        what = answers.doing(order, words)
        if uri.startswith(answers.TEST):
            hint = "--simulate HOST, such as --simulate hgx8, keeps it"
            raise HostError(f"{what}: libvirt's test driver forgets it when vfioctl ends", hint=hint)
        timeout = self._timeouts.of("libvirt-start" if order == "start" else "libvirt")
        answers.value_of(self._run(what, _LIBVIRT_HINT, timeout, answers.named(order), uri, *words), uri, order, words)

    def _refuse(self, what: str) -> None:
        if self._read_only:
            raise HostError(f"{what}: {self.read_only}")

    def _run(self, what: str, hint: str, timeout: float, function: Callable[..., object], *args: object) -> Any:
        return called(self._workers, what, function, *args, timeout=timeout, fds=self._locks.fds, hint=hint)

    @contextmanager
    def exclusive(
        self,
        lock: Path,
        *,
        wait: float,
        waiting: Callable[[], None] | None = None,
        check: Callable[[], None] | None = None,
    ) -> Iterator[None]:
        with held(lock, wait=wait, waiting=waiting, check=check) as fd:
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


def _write_never_returned(path: str, value: str, late: Unreturned) -> Stuck:
    hint = "something holds the device; the write ends when it is released, or at the next boot"
    error = never_returned(f"writing {value!r} to {path}", hint, late)
    error.next_command = "vfioctl recover"
    error.facts["path"] = path
    return error


def _failed(message: str, said: str, *, hint: str = "") -> HostError:
    error = HostError(message, hint=hint)
    error.kernel_said = said
    return error
