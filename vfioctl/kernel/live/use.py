"""Users of the devices of this machine, configuration space and ROM: the part of `Live` that no listing needs.

Modules are imported when they are used, so that a listing starts quickly.
"""

from __future__ import annotations

import errno as errnos
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from vfioctl.errors import KernelRefused
from vfioctl.kernel.open_nodes import Opened
from vfioctl.kernel.protocol import PCI_DEVICES, Descendant
from vfioctl.kernel.timeouts import Timeouts
from vfioctl.kernel.worker.workers import Workers

T = TypeVar("T")


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
        from vfioctl.kernel.live.cgroups import made_by_root

        return made_by_root(hierarchy, path)

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

    def config(self, address: str) -> bytes:
        from vfioctl.kernel.live.devices import config_or_errno

        return self._read_device(f"{PCI_DEVICES}/{address}/config", config_or_errno)

    def rom(self, address: str) -> bytes:
        from vfioctl.kernel.live.devices import rom_or_errno

        return self._read_device(f"{PCI_DEVICES}/{address}/rom", rom_or_errno)

    def _asked(self, path: str, ask: Callable[[str], T], subject: str) -> T:
        try:
            return ask(subject)
        except OSError as error:
            raise refused(path, error) from None

    def _read_device(self, path: str, read: Callable[[str], bytes | int]) -> bytes:
        from vfioctl.kernel.live.services import read_device

        return read_device(self._workers, path, read, timeout=self._timeouts.default)


def refused(path: str, error: OSError | ValueError) -> KernelRefused:
    """The OSError as KernelRefused; EINVAL for a ValueError, which Python raises for what can be no path."""
    return KernelRefused(path, (error.errno or errnos.EIO) if isinstance(error, OSError) else errnos.EINVAL)
