"""What a host offers to share GPUs between control groups: who uses how much GPU time, and the freezer. Protocols only.

Paths of control groups (version 2) begin with `/`, below the root of the hierarchy, as in /proc/PID/cgroup."""

from __future__ import annotations

import errno as errnos
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

ENDED = frozenset({errnos.ENOENT, errnos.ENODEV, errnos.ESRCH})
"""What the kernel says of a control group that has ended."""

ProcessSample = tuple[int, int, int]
"""What NVML says of one process on one GPU (nvmlProcessUtilizationSample_t): its number; when the sample was taken, in
microseconds since 1970; and in which percentage of its period, of 1/6 s to 1 s, kernels of the process ran on the GPU.
A plain tuple: thousands come in a second."""

ProcessMemory = tuple[int, int]
"""The number of a process, and the bytes of the GPU's memory that it has (nvmlProcessInfo_t)."""


class Samples(NamedTuple):
    """The samples of one GPU, or why it has none any more."""

    gpu: str
    samples: Sequence[ProcessSample] = ()
    problem: str = ""
    memory: Sequence[ProcessMemory] | None = None
    """The memory of all its processes, if NVML was asked again for it."""


class SampleFeed(Protocol):
    """NVML's samples, read without waiting."""

    def read(self) -> list[Samples]:
        """Return the samples since the last call. Raises Lost when NVML cannot be used any more."""

    def close(self) -> None:
        """End the program that asks NVML, which has the GPUs open."""


class GroupState(NamedTuple):
    """A control group: cgroup.events and cgroup.freeze."""

    populated: bool
    """Whether there are processes in it, or below it."""
    frozen: bool
    """Whether all of them are frozen now."""
    asked: bool
    """Whether somebody has asked to freeze it: 1 is in cgroup.freeze."""


class ControlGroups(Protocol):
    """The control groups of a host. Methods raise KernelRefused, with ENOENT or ENODEV for a group that is gone."""

    def own(self) -> str:
        """Return the path of this process's group."""

    def processes(self, path: str) -> Sequence[int]:
        """Return the processes in a group and below it. Of a group that ends meanwhile, those that are left."""

    def state(self, path: str) -> GroupState:
        """Return the state of a group."""

    def set_frozen(self, path: str, *, frozen: bool) -> None:
        """Ask the kernel to freeze a group with all below it, or to thaw it. It does not wait for the processes."""

    def await_frozen(self, path: str, seconds: float, *, frozen: bool = True) -> bool:
        """Wait for at most so long until a group is frozen, or is not; return whether it is so."""


class ProcessGroups(Protocol):
    """The control groups of processes, remembered while they live: for some seconds, then asked again."""

    def name_of(self, pid: int, at: float) -> str:
        """Return the name of the group of a process that lived at `at` (seconds since 1970)."""

    def refresh(self) -> None:
        """Forget processes that have ended. Called before each round of questions."""

    def close(self) -> None:
        """Close what is open."""


class DrmClients(Protocol):
    """The texts of /proc/PID/fdinfo of open DRM files."""

    def texts(self, pid: int) -> Sequence[str]:
        """Return the text of each DRM file that a process has open; none for a process that has ended.

        Raises KernelRefused if its files may not be read."""

    def keep(self, pids: Collection[int]) -> None:
        """Forget what is known of all other processes."""


class ThawWatchdog(Protocol):
    """A process that thaws what this one has frozen when this one ends, however it ends."""

    def announce(self, path: str, seconds: float) -> None:
        """Have it thaw a group if this process ends, and after so many seconds unless retracted. Called before the
        group is frozen: the watchdog has the group open when this returns. Raises HostError if it has not."""

    def retract(self, path: str) -> None:
        """Have it leave a group alone, which is thawed."""

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""

    @property
    def pid(self) -> int:
        """Its process."""

    def close(self) -> None:
        """End it. It thaws what is still announced."""


class GpuSharing(Protocol):
    """The services of one host. Each has an own state, and belongs to one thread."""

    def control_groups(self) -> ControlGroups:
        """Return its control groups. Raises HostError without a hierarchy of version 2."""

    def process_groups(self, name_of: Callable[[str | None], str]) -> ProcessGroups:
        """Return which group a process is in. `name_of`: called with the path of a group, and returns its name; with
        None if the process has ended, the one with this number began later, or it is outside of what is seen here."""

    def drm_clients(self) -> DrmClients:
        """Return the reader of DRM files."""

    def process_samples(self, gpus: Sequence[str], period: float) -> SampleFeed:
        """Ask NVML about these GPUs every `period` seconds, in a program of its own that has them open meanwhile.
        Raises Lost if it cannot be started."""

    def thaw_watchdog(self) -> ThawWatchdog:
        """Start a watchdog. Raises HostError."""

    def thaw_abandoned(self) -> Mapping[str, str]:
        """Thaw what a watchdog recorded that was itself killed. Return each group, with why it could not be thawed;
        empty if it was."""
