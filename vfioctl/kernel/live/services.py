"""Calls that may block: modules, ROMs, NVML, systemd, sriov-manage. Each runs in a worker with a timeout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from shlex import quote
from typing import Any

from vfioctl.errors import HostError, KernelRefused
from vfioctl.kernel import files
from vfioctl.kernel.live import units
from vfioctl.kernel.live.stuck import call_never_returned
from vfioctl.kernel.worker.job import Unreturned
from vfioctl.kernel.worker.workers import Workers

SRIOV_MANAGE = "/usr/lib/nvidia/sriov-manage"
_NOT_FOUND = 127  # exit code of files.run when the command cannot be started
MANAGE_SECONDS = 120.0
"""Timeout for sriov-manage: it unbinds and binds the GPU and then each VF, one after the other."""
UNIT_SECONDS = 120.0
"""Timeout for a unit to start or stop: systemd kills what has not stopped after 90 s (DefaultTimeoutStopSec)."""


def read_device(workers: Workers, path: str, read: Callable[[str], bytes | int], *, timeout: float) -> bytes:
    """Calls `read(path)`, which returns bytes or an errno. Raises KernelRefused, Stuck."""
    answer = _call(workers, f"reading {path}", read, path, timeout=timeout)
    if isinstance(answer, int):
        raise KernelRefused(path, answer)
    return bytes(answer)


def load_module(workers: Workers, module: str, *, timeout: float, fds: Sequence[int] = ()) -> None:
    """Loads a module and its dependencies. Raises HostError, Stuck."""
    hint = "a driver is attaching to a device that does not answer: dmesg | tail"
    command = ["modprobe", "--", module]
    code, output = _call(workers, f"modprobe {module}", files.run, command, timeout=timeout, fds=fds, hint=hint)
    if code:
        error = HostError(
            f"module {module} could not be loaded",
            hint="if the kernel was upgraded since the last boot, its modules may be gone: reboot",
        )
        error.kernel_said = output
        raise error


def persist(workers: Workers, address: str, *, on: bool, timeout: float, fds: Sequence[int] = ()) -> None:
    """Sets the persistence mode of one NVIDIA GPU. Raises HostError, Stuck."""
    from vfioctl.kernel.live.nvml import set_persistence

    what = f"switching the persistence mode of {address} {'on' if on else 'off'}"
    hint = "the NVIDIA driver does not answer: dmesg | tail"
    reason = _call(workers, what, set_persistence, address, on, timeout=timeout, fds=fds, hint=hint)
    if reason:
        raise _failed(what, reason)


def set_unit(
    workers: Workers, name: str, *, active: bool, timeout: float = UNIT_SECONDS, fds: Sequence[int] = ()
) -> None:
    """Starts or stops a systemd unit. Raises HostError, Stuck."""
    what = f"{'starting' if active else 'stopping'} {name}"
    hint = f"systemctl status {quote(name)} says what it waits for"
    code, output = _call(workers, what, units.set_active, name, active, timeout=timeout, fds=fds, hint=hint)
    if code:
        raise _failed(what, output or f"systemctl ended with {code}")


def manage_vfs(workers: Workers, address: str, *, on: bool, timeout: float, fds: Sequence[int] = ()) -> str:
    """Runs NVIDIA's sriov-manage; its output. Its exit code is ignored: it can be 0 when nothing was done.

    Raises HostError, Stuck.
    """
    what = f"{SRIOV_MANAGE} {'-e' if on else '-d'} {address}"
    hint = "the NVIDIA driver does not answer: dmesg"
    code, output = _call(workers, what, files.run, what.split(), timeout=timeout, fds=fds, hint=hint)
    if code == _NOT_FOUND:
        error = HostError(f"{SRIOV_MANAGE} cannot be run", hint="it comes with NVIDIA's vGPU host driver")
        error.kernel_said = output
        raise error
    return str(output)


def _call(
    workers: Workers,
    what: str,
    function: Callable[..., object],
    *args: object,
    timeout: float,
    fds: Sequence[int] = (),
    hint: str = "",
) -> Any:
    try:
        return workers.call(function, *args, timeout=timeout, fds=fds)
    except Unreturned as late:
        raise call_never_returned(what, hint, late) from None
    except ChildProcessError:
        raise HostError(f"{what} failed: its process was killed", hint="dmesg says if memory ran out") from None


def _failed(what: str, reason: str) -> HostError:
    error = HostError(f"{what} failed")
    error.kernel_said = reason
    return error
