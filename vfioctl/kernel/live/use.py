"""Users of the devices of this machine, configuration space and ROM: the part of `Live` that no listing needs. Modules
are imported when they are used, so that a listing starts quickly."""

from __future__ import annotations

import errno as errnos
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from vfioctl.errors import HostError, KernelRefused, Stuck
from vfioctl.kernel.descriptors import closing
from vfioctl.kernel.device_lists import DeviceProgram, UnitDevices
from vfioctl.kernel.mps import PROGRAM, refuse_question
from vfioctl.kernel.open_nodes import Opened
from vfioctl.kernel.protocol import PCI_DEVICES, Descendant
from vfioctl.kernel.timeouts import Timeouts
from vfioctl.kernel.worker.job import call
from vfioctl.kernel.worker.processes import ticket_of
from vfioctl.kernel.worker.stall import Unreturned
from vfioctl.kernel.worker.workers import Workers

T = TypeVar("T")
_CGROUPS = "/sys/fs/cgroup"
_MOST_CALLS = 6


class LiveUse:
    """`_workers` read what can block."""

    _believed: tuple[str, ...]
    _timeouts: Timeouts
    _workers: Workers

    @property
    def processes_unknown(self) -> str:
        return ""

    @property
    def reads_all_processes(self) -> bool:
        return os.geteuid() == 0

    @property
    def believed_users(self) -> Collection[str]:
        return self._believed

    def open_nodes(self, pid: str) -> Opened:
        from vfioctl.kernel.live.processes import open_nodes

        return self._asked(f"/proc/{pid}", open_nodes, pid)

    def made_by_root(self, hierarchy: str, path: str) -> str:
        """See `Processes.made_by_root`; empty where that is unknown. Who owns a directory can create others in it:
        systemd hands a delegated subtree over by chown (Delegate=, User=). `hierarchy`: the controllers of a version 1
        hierarchy as /proc/PID/cgroup has them."""
        names = path.strip("/").split("/")
        if ".." in names:  # outside the reader's cgroup namespace
            return ""
        folders = (f"/{hierarchy.removeprefix('name=')}",) if hierarchy else ("", "/unified")
        return max((_owned(f"{_CGROUPS}{folder}", names) for folder in folders), key=len)

    def below(self, path: str) -> Sequence[Descendant]:
        from vfioctl.kernel.live.processes import below

        return self._asked(path, below, path)

    def claimed(self, number: str) -> bool:
        from vfioctl.kernel.live.processes import claimed

        return self._asked(f"/dev/block/{number}", claimed, number)

    def user(self, uid: int) -> str:
        from vfioctl.kernel.live.processes import user

        return user(uid)

    def unit_states(self, names: Sequence[str]) -> Mapping[str, str]:
        from vfioctl.kernel.live.units import states

        return states(names)

    def device_programs(self, cgroup: str) -> Sequence[DeviceProgram]:
        from vfioctl.kernel.live.device_programs import programs

        return programs(cgroup)

    def restricted_cgroups(self) -> Sequence[str]:
        from vfioctl.kernel.live.device_programs import restricted

        return restricted()

    def unit_devices(self, cgroup: str) -> UnitDevices | None:
        from vfioctl.kernel.live.unit_devices import unit_of

        return unit_of(cgroup)

    def mps_usage(self) -> str:
        return talked(self._workers, "", "", "--help", any_code=True)

    def ask_mps(self, pipes: str, question: str) -> str:
        refuse_question(question)
        return talked(self._workers, pipes, question)

    def config(self, address: str) -> bytes:
        return self._read_device(f"{PCI_DEVICES}/{address}/config", config_or_errno)

    def rom(self, address: str) -> bytes:
        return self._read_device(f"{PCI_DEVICES}/{address}/rom", rom_or_errno)

    def _asked(self, path: str, ask: Callable[[str], T], subject: str) -> T:
        try:
            return ask(subject)
        except OSError as error:
            raise refused(path, error) from None

    def _read_device(self, path: str, read: Callable[[str], bytes | int]) -> bytes:
        answer = called(self._workers, f"reading {path}", read, path, timeout=self._timeouts.default)
        if isinstance(answer, int):
            raise KernelRefused(path, answer)
        return bytes(answer)


def called(
    workers: Workers,
    what: str,
    function: Callable[..., object],
    *args: object,
    timeout: float,
    fds: Sequence[int] = (),
    hint: str = "",
) -> Any:
    """What the function returns in a worker. Raises Stuck after the timeout, HostError if the worker was killed."""
    try:
        return call(workers.server, function, *args, timeout=timeout, fds=fds)
    except Unreturned as late:
        raise never_returned(what, hint, late) from None
    except ChildProcessError:
        raise HostError(f"{what} failed: its process was killed", hint="dmesg says if memory ran out") from None


def talked(
    workers: Workers, pipes: str, command: str, *options: str, fds: Sequence[int] = (), any_code: bool = False
) -> str:
    """What the control program of MPS answers. Raises HostError, Stuck. `any_code`: also if it reports a failure."""
    from vfioctl.kernel.live import mps

    what = f"{PROGRAM} {command or ' '.join(options)}"
    hint = "the NVIDIA driver does not answer: dmesg | tail"
    code, output = called(
        workers, what, mps.talk, pipes, command, *options, timeout=2 * mps.SECONDS, fds=fds, hint=hint
    )
    if code == mps.NOT_FOUND:
        raise HostError(f"this host has no MPS: {output}", hint="it comes with NVIDIA's driver: nvidia-compute-utils")
    if code == mps.NO_ANSWER:
        raise HostError(f"{what}: no answer within {mps.SECONDS:g} s", hint="journalctl -u 'vfioctl-mps@*' says more")
    if code and not any_code:
        error = HostError(f"{what} failed", hint="journalctl -u 'vfioctl-mps@*' says more")
        error.kernel_said = output[-500:] or f"{PROGRAM} ended with {code}"
        raise error
    return str(output)


def refused(path: str, error: OSError | ValueError) -> KernelRefused:
    """The OSError as KernelRefused; EINVAL for a ValueError, which Python raises for what can be no path."""
    return KernelRefused(path, (error.errno or errnos.EIO) if isinstance(error, OSError) else errnos.EINVAL)


def never_returned(what: str, hint: str, late: Unreturned) -> Stuck:
    """The error for a call that did not return. Its facts have the ticket that `Kernel.write_ended` takes."""
    facts = {"pid": late.pid, "ticket": ticket_of(late.pid), **late.state}
    error = Stuck(f"{what} did not return in {late.seconds:g} s", hint=hint, facts=facts)
    state, place = late.state.get("stat", "?"), late.state.get("wchan", "?")
    calls = re.findall(r"^\[<0>\] (\w+)\+", late.state.get("stack", ""), re.M)[:_MOST_CALLS]
    called_by = f", called by {' <- '.join(calls)}" if calls else ""
    error.kernel_said = f"process {late.pid} is in state {state}, in {place}{called_by}"
    return error


def _owned(place: str, names: list[str]) -> str:
    known: list[str] = []
    for name in names:
        try:
            if os.stat("/".join((place, *known))).st_uid != 0:
                break
            os.stat("/".join((place, *known, name)))
        except OSError:
            break
        known.append(name)
    return "".join(f"/{name}" for name in known)


CONFIG_BYTES = 64
MOST_ROM = 16 << 20
"""The largest expansion ROM that a BAR can have (PCI Local Bus 3.0, 6.2.5.2)."""

_CHUNK = 1 << 16

# Values that every kernel accepts. In older ones pci_write_rom (drivers/pci/pci-sysfs.c) switches the ROM off only for
# two bytes at offset 0 of which the first is "0", so a single "0" leaves the ROM on; Linux 6.1 uses kstrtobool.
_ON, _OFF = b"1\n", b"0\n"


def _or_errno(read: Callable[[str], bytes], path: str) -> bytes | int:
    try:
        return read(path)
    except OSError as error:
        return error.errno or errnos.EIO


def config_or_errno(path: str) -> bytes | int:
    """The first 64 bytes of the file `config`, or the errno."""
    return _or_errno(read_config, path)


def rom_or_errno(path: str) -> bytes | int:
    """As `read_rom`, but returns the errno instead of raising."""
    return _or_errno(read_rom, path)


def read_config(path: str) -> bytes:
    """The first 64 bytes of the file `config`. Raises OSError."""
    with closing(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as fd:
        return os.read(fd, CONFIG_BYTES)


def read_rom(path: str) -> bytes:
    """The file `rom`, at most 16 MiB. Switches the ROM on before and off afterwards. Raises OSError."""
    with closing(os.open(path, os.O_RDWR | os.O_CLOEXEC)) as fd:
        os.pwrite(fd, _ON, 0)
        try:
            data = bytearray()
            while len(data) < MOST_ROM and (more := os.pread(fd, min(_CHUNK, MOST_ROM - len(data)), len(data))):
                data += more
            return bytes(data)
        finally:
            os.pwrite(fd, _OFF, 0)
