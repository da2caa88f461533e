"""Users of the devices of this machine, configuration space and ROM: the part of `Live` that no listing needs.

Modules are imported when they are used, so that a listing starts quickly.
"""

from __future__ import annotations

import errno as errnos
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from vfioctl.errors import KernelRefused
from vfioctl.kernel.protocol import NO_PROCESSES, PCI_DEVICES, Descendant, Directory, OpenNode
from vfioctl.kernel.timeouts import Timeouts
from vfioctl.kernel.worker.workers import Workers

T = TypeVar("T")


class LiveUse:
    """`_root` is empty for this machine. A captured directory has devices, but no processes and no users."""

    _root: str
    _timeouts: Timeouts
    _workers: Workers

    if TYPE_CHECKING:

        def directory(self, path: str, wanted: Collection[str]) -> Directory: ...

    @property
    def processes_unknown(self) -> str:
        return NO_PROCESSES if self._root else ""

    def open_nodes(self, pid: str) -> Sequence[OpenNode]:
        from vfioctl.kernel.live.processes import open_nodes

        return self._asked(f"/proc/{pid}", open_nodes, pid)

    def below(self, path: str) -> Sequence[Descendant]:
        if self._root:
            from vfioctl.kernel.live.captured import below_captured

            return below_captured(self.directory, path)
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

        return {} if self._root else states(names)

    def config(self, address: str) -> bytes:
        from vfioctl.kernel.live.devices import config_or_errno

        return self._read_device(f"{PCI_DEVICES}/{address}/config", config_or_errno)

    def rom(self, address: str) -> bytes:
        from vfioctl.kernel.live.devices import rom_or_errno

        return self._read_device(f"{PCI_DEVICES}/{address}/rom", rom_or_errno)

    def _asked(self, path: str, ask: Callable[[str], T], subject: str) -> T:
        if self._root:  # the processes and devices of this machine are not those of a captured one
            raise KernelRefused(path, errnos.ENOENT)
        try:
            return ask(subject)
        except OSError as error:
            raise refused(path, error) from None

    def _read_device(self, path: str, read: Callable[[str], bytes | int]) -> bytes:
        if self._root:
            raise KernelRefused(path, errnos.ENOENT)
        from vfioctl.kernel.live.services import read_device

        return read_device(self._workers, path, read, timeout=self._timeouts.default)


def refused(path: str, error: OSError) -> KernelRefused:
    """The OSError as KernelRefused."""
    return KernelRefused(path, error.errno or errnos.EIO)
