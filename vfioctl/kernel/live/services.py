"""What this machine is asked or told beside its files, each in a child that can be outlived.

Modules, ROMs, NVML, systemd.
"""

from __future__ import annotations

import errno as errnos
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from vfioctl.errors import HostError, KernelRefused
from vfioctl.kernel import files
from vfioctl.kernel.live import units
from vfioctl.kernel.live.stuck import call_never_returned
from vfioctl.kernel.worker import child as expendable

SRIOV_MANAGE = "/usr/lib/nvidia/sriov-manage"
_NOT_THERE = 127  # as files.run has it
MANAGE_SECONDS = 120.0
"""For sriov-manage: the GPU loses its driver and finds it again, and so does each VF, one after the other."""
UNIT_SECONDS = 120.0
"""For a unit to start or stop: systemd itself kills what has not stopped after 90 s (DefaultTimeoutStopSec)."""


def read_device(path: str, read: Callable[[str], bytes], *, deadline: float) -> bytes:
    """`read(path)`. Raises KernelRefused, Stuck."""

    def attempt() -> bytes | int:
        try:
            return read(path)
        except OSError as error:
            return error.errno or errnos.EIO

    answer = _outlived(f"reading {path}", attempt, deadline=deadline)
    if isinstance(answer, int):
        raise KernelRefused(path, answer)
    return bytes(answer)


def load_module(module: str, *, deadline: float, keep: Collection[int] = ()) -> None:
    """Loads a module with what it depends on. Raises HostError, Stuck."""
    hint = "a driver is attaching to a device that does not answer: dmesg | tail"
    work = partial(files.run, ["modprobe", "--", module])
    code, said = _outlived(f"modprobe {module}", work, deadline=deadline, keep=keep, hint=hint)
    if code:
        error = HostError(
            f"module {module} could not be loaded",
            hint="if the kernel was upgraded since the last boot, its modules are gone: reboot",
        )
        error.kernel_said = said
        raise error


def persist(address: str, *, on: bool, deadline: float, keep: Collection[int] = ()) -> None:
    """Sets the persistence mode of one NVIDIA GPU. Raises HostError, Stuck."""
    from vfioctl.kernel.live.nvml import set_persistence

    what = f"switching the persistence mode of {address} {'on' if on else 'off'}"
    hint = "the NVIDIA driver does not answer: dmesg | tail"
    reason = _outlived(what, partial(set_persistence, address, on=on), deadline=deadline, keep=keep, hint=hint)
    if reason:
        raise _failed(what, reason)


def set_unit(name: str, *, active: bool, deadline: float = UNIT_SECONDS, keep: Collection[int] = ()) -> None:
    """Starts or stops a systemd unit. Raises HostError, Stuck."""
    what, hint = f"{'starting' if active else 'stopping'} {name}", f"systemctl status {name} says what it waits for"
    work = partial(units.set_active, name, active=active)
    code, said = _outlived(what, work, deadline=deadline, keep=keep, hint=hint)
    if code:
        raise _failed(what, said or f"systemctl ended with {code}")


def manage_vfs(address: str, *, on: bool, deadline: float, keep: Collection[int] = ()) -> str:
    """Runs NVIDIA's sriov-manage; its words. Its exit code says nothing: it can be 0 when nothing was done.

    Raises HostError, Stuck.
    """
    what = f"{SRIOV_MANAGE} {'-e' if on else '-d'} {address}"
    work = partial(files.run, what.split())
    code, said = _outlived(what, work, deadline=deadline, keep=keep, hint="the NVIDIA driver does not answer: dmesg")
    if code == _NOT_THERE:
        error = HostError(f"{SRIOV_MANAGE} cannot be run", hint="it comes with NVIDIA's vGPU host driver")
        error.kernel_said = said
        raise error
    return str(said)


def _outlived(
    what: str, work: Callable[[], object], *, deadline: float, keep: Collection[int] = (), hint: str = ""
) -> Any:
    try:
        return expendable.call(work, deadline=deadline, keep=keep)
    except expendable.Unreturned as late:
        raise call_never_returned(what, hint, late) from None
    except ChildProcessError:
        raise HostError(f"{what} failed: its process was killed", hint="dmesg says if memory ran out") from None


def _failed(what: str, reason: str) -> HostError:
    error = HostError(f"{what} failed")
    error.kernel_said = reason
    return error
