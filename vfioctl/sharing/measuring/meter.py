"""Measures the GPU time of control groups: reads samples and counters through the kernel's services, and adds them up.
One source that fails costs its GPUs only."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from vfioctl.errors import KernelRefused
from vfioctl.kernel.feeds import Lost
from vfioctl.sharing.measuring.drm_fdinfo import DrmClient, client_in
from vfioctl.sharing.measuring.drm_time import DrmTime
from vfioctl.sharing.measuring.gpus import MeasuredGpus
from vfioctl.sharing.measuring.lease_time import LeaseTime
from vfioctl.sharing.measuring.names import GroupNames
from vfioctl.sharing.measuring.nvml_time import SHORTEST, NvmlTime
from vfioctl.sharing.model.gpu_time import Usage

if TYPE_CHECKING:
    from vfioctl.kernel.gpu_sharing import GpuSharing, SampleFeed

_FORGET = 60.0
"""Seconds after which groups that have ended make room for the names of others."""
_REOPEN, _RETRY, _LONGEST = 10.0, 60.0, 3600.0
"""Seconds before NVML is asked again after it has failed, and after it has failed for some GPUs only: that costs the
others some samples, and it may fail for ever, as for a GPU with MIG. Each time it is twice as long, up to an hour."""
_MANY, _SELDOM = 64, 1.0
"""Processes from which on counters are read once in so many seconds: each file takes the kernel some microseconds."""


class GpuMeter:
    """Measures GPU time. For one thread. `paths`: the listed groups; without any, all processes are looked at. NVML is
    sampled as often as it measures, however seldom it is read here: it tells the last sample of a process only."""

    def __init__(self, host: GpuSharing, paths: Collection[str]) -> None:
        """Raises HostError on a host without control groups of version 2."""
        self._host, self._paths = host, tuple(paths)
        self._groups, self._clients = host.control_groups(), host.drm_clients()
        self._names, self._names_at = GroupNames(paths), time.monotonic()
        self._processes = host.process_groups(self._names.name_of)
        self._nvml, self._drm, self._lease = NvmlTime(self._processes.name_of), DrmTime(), LeaseTime()
        self._feed: SampleFeed | None = None
        self._gpus = MeasuredGpus()
        self._again = self._retry = self._drm_next = 0.0
        self._reopen_pause, self._retry_pause = _REOPEN, _RETRY
        self._memory: dict[str, dict[str, int]] = {}
        self._lost: dict[str, str] = {}
        self._unread: dict[str, str] = {}

    def measure_gpus(self, gpus: MeasuredGpus) -> None:
        """Measure these from now on."""
        if gpus.nvml != self._gpus.nvml:
            self._close_feed()
            self._lost, self._again = {}, 0.0
            self._reopen_pause, self._retry_pause = _REOPEN, _RETRY
        self._gpus = gpus
        self._memory = {gpu: sizes for gpu, sizes in self._memory.items() if gpu in (*gpus.nvml, *gpus.fdinfo)}

    @property
    def problems(self) -> dict[str, str]:
        """Why GPUs and groups are not measured, by address and path."""
        return {**self._gpus.problems, **self._lost, **self._unread}

    @property
    def memory(self) -> dict[tuple[str, str], int]:
        """Bytes of the memory of each GPU that the processes of a group have, by group and address; seconds old."""
        return {(group, gpu): size for gpu, sizes in self._memory.items() for group, size in sizes.items() if size}

    def read(self) -> list[Usage]:
        """Return the GPU time since the last call."""
        self._processes.refresh()
        now = time.monotonic()
        if now >= self._names_at + _FORGET:
            self._names_at = now
            self._names.forget()
        return [*self._of_nvml(now), *self._of_drm(now), *self._lease.take(self._gpus.leases, now)]

    def close(self) -> None:
        """End the program that asks NVML."""
        self._close_feed()
        self._processes.close()

    def _of_nvml(self, now: float) -> Iterator[Usage]:
        if not self._gpus.nvml or now < self._again:
            return
        if self._lost and now >= self._retry:
            self._close_feed()
        try:
            if self._feed is None:
                self._feed = self._host.process_samples(self._gpus.nvml, SHORTEST)
                self._retry, self._retry_pause = now + self._retry_pause, min(2 * self._retry_pause, _LONGEST)
            sampled = self._feed.read()
        except Lost as lost:
            self._close_feed()
            self._again, self._reopen_pause = now + self._reopen_pause, min(2 * self._reopen_pause, _LONGEST)
            self._lost |= dict.fromkeys(self._gpus.nvml, str(lost))
            for gpu in self._gpus.nvml:
                self._memory.pop(gpu, None)
            return
        for samples in sampled:
            if samples.problem:
                self._lost[samples.gpu] = samples.problem
                self._memory.pop(samples.gpu, None)
                continue
            self._lost.pop(samples.gpu, None)
            self._reopen_pause = _REOPEN
            if samples.memory is not None:
                at = time.time()
                named = ((self._processes.name_of(pid, at), size) for pid, size in samples.memory)
                self._memory[samples.gpu] = _summed(named)
            else:
                yield from self._nvml.take(samples)

    def _of_drm(self, now: float) -> list[Usage]:
        if not self._gpus.fdinfo or now < self._drm_next:
            return []
        self._unread = {}
        pids = [*dict.fromkeys(pid for path in self._paths or ("/",) for pid in self._members(path))]
        self._drm_next = now + _SELDOM if len(pids) > _MANY else now
        self._clients.keep(pids)
        found = [*self._open_clients(pids)]
        of_client = {(client.gpu, client.client): (name, client.memory) for client, name in reversed(found)}
        for gpu in self._gpus.fdinfo:
            self._memory[gpu] = _summed(held for (of_gpu, _), held in of_client.items() if of_gpu == gpu)
        return self._drm.take(found, now)

    def _members(self, path: str) -> Collection[int]:
        try:
            return self._groups.processes(path)
        except KernelRefused as refused:
            self._unread[path] = f"its processes cannot be listed ({refused.symbol})"
            return ()

    def _open_clients(self, pids: Collection[int]) -> Iterator[tuple[DrmClient, str]]:
        for pid in pids:
            try:
                texts = self._clients.texts(pid)
            except KernelRefused as refused:
                self._unread["processes"] = f"open files of some cannot be read ({refused.symbol}): run it as root"
                continue
            clients = [client for client in map(client_in, texts) if client and client.gpu in self._gpus.fdinfo]
            if clients:
                name = self._processes.name_of(pid, time.time())
                yield from ((client, name) for client in clients)

    def _close_feed(self) -> None:
        if self._feed:
            self._feed.close()
            self._feed = None


def _summed(held: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return the bytes of each group."""
    sums: dict[str, int] = {}
    for name, size in held:
        sums[name] = sums.get(name, 0) + size
    return sums
