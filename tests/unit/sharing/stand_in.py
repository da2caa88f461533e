"""A machine's control groups as a test has them: in memory, with a freezer, samples and a watchdog that keeps a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence

from vfioctl.errors import HostError, KernelRefused
from vfioctl.kernel.gpu_sharing import GroupState, Samples


class Groups:
    """See `ControlGroups`. `members`: processes by path."""

    def __init__(self, members: Mapping[str, Sequence[int]], own: str = "/system.slice/vfioctl.service") -> None:
        self.members, self.home = dict(members), own
        self.asked: set[str] = set()
        self.slow: set[str] = set()
        """Groups that are asked to freeze, and do not."""
        self.stuck: set[str] = set()
        """Groups that cannot be thawed."""
        self.log: list[str] = []

    def own(self) -> str:
        return self.home

    def processes(self, path: str) -> Sequence[int]:
        self._refuse_gone(path)
        return [pid for name, pids in self.members.items() if f"{name}/".startswith(f"{path}/") for pid in pids]

    def state(self, path: str) -> GroupState:
        self._refuse_gone(path)
        asked = path in self.asked
        return GroupState(populated=True, frozen=asked and path not in self.slow, asked=asked)

    def set_frozen(self, path: str, *, frozen: bool) -> None:
        self._refuse_gone(path)
        if path in self.stuck and not frozen:
            raise KernelRefused(path, 24)
        self.log.append(f"{'freeze' if frozen else 'thaw'} {path}")
        (self.asked.add if frozen else self.asked.discard)(path)

    def await_frozen(self, path: str, seconds: float, *, frozen: bool = True) -> bool:  # noqa: ARG002 - as the protocol has it
        return self.state(path).frozen == frozen

    def _refuse_gone(self, path: str) -> None:
        if path not in self.members:
            raise KernelRefused(path, 2)


class Watchdog:
    """See `ThawWatchdog`."""

    def __init__(self, log: list[str]) -> None:
        self.log, self.is_alive, self.pid, self.deaf = log, True, 999, False
        self.refuses: set[str] = set()

    def announce(self, path: str, seconds: float) -> None:  # noqa: ARG002 - as the protocol has it
        if self.deaf:
            raise HostError("the watchdog that thaws did not answer within 5 s")
        if path in self.refuses:
            raise KernelRefused(path, 13)
        self.log.append(f"announce {path}")

    def retract(self, path: str) -> None:
        self.log.append(f"retract {path}")

    def close(self) -> None:
        self.is_alive = False


class Processes:
    """See `ProcessGroups`."""

    def __init__(self, groups: Groups, name_of: Callable[[str | None], str]) -> None:
        self._groups, self._name_of = groups, name_of

    def name_of(self, pid: int, at: float) -> str:  # noqa: ARG002 - as the protocol has it
        return self._name_of(next((path for path, pids in self._groups.members.items() if pid in pids), None))

    def refresh(self) -> None: ...

    def close(self) -> None: ...


class Clients:
    """See `DrmClients`."""

    def __init__(self, host: Machine) -> None:
        self._host = host

    def texts(self, pid: int) -> Sequence[str]:
        if pid in self._host.closed:
            raise KernelRefused(f"/proc/{pid}/fd", 13)
        return self._host.texts.get(pid, ())

    def keep(self, pids: Collection[int]) -> None: ...


class Feed:
    """See `SampleFeed`: in each reading, the processes that run have used the GPU in these percentages."""

    def __init__(self, host: Machine, gpus: Sequence[str]) -> None:
        self._host, self._gpus = host, [gpu for gpu in gpus if gpu not in host.failed]
        self._failed = [Samples(gpu, (), why) for gpu, why in host.failed.items() if gpu in gpus]
        host.feeds += 1
        host.opened += 1

    def read(self) -> list[Samples]:
        host = self._host
        if host.lost:
            raise host.lost
        failed, self._failed = self._failed, []
        at = int(time.time() * 1e6)
        frozen = {pid for path in host.groups.asked for pid in host.groups.members[path]}
        used = [(pid, at, part) for pid, part in host.percents.items() if pid not in frozen]
        return failed + [
            samples
            for gpu in self._gpus
            for samples in (Samples(gpu, memory=[*host.memory.items()]), Samples(gpu, used))
        ]

    def close(self) -> None:
        self._host.feeds -= 1


class Machine:
    """See `GpuSharing`."""

    def __init__(self, groups: Groups) -> None:
        self.groups, self.log = groups, groups.log
        self.percents: dict[int, int] = {}
        self.memory: dict[int, int] = {}
        """Bytes by process."""
        self.texts: dict[int, Sequence[str]] = {}
        self.closed: set[int] = set()
        self.lost: Exception | None = None
        self.failed: dict[str, str] = {}
        """GPUs that fail as a feed begins, and why: it does not ask them again."""
        self.feeds = self.opened = 0
        """Feeds that are open, and that were opened in all."""
        self.watchdogs: list[Watchdog] = []
        self.left: dict[str, str] = {}

    def control_groups(self) -> Groups:
        return self.groups

    def process_groups(self, name_of: Callable[[str | None], str]) -> Processes:
        return Processes(self.groups, name_of)

    def drm_clients(self) -> Clients:
        return Clients(self)

    def process_samples(self, gpus: Sequence[str], period: float) -> Feed:  # noqa: ARG002 - as the protocol has it
        return Feed(self, gpus)

    def thaw_watchdog(self) -> Watchdog:
        self.watchdogs.append(Watchdog(self.log))
        return self.watchdogs[-1]

    def thaw_abandoned(self) -> Mapping[str, str]:
        return self.left
