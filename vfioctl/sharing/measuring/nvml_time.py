"""GPU time from NVML's process samples. May not do I/O.

A sample says in which percent of its period a process had kernels on the GPU. The period is from 1/6 s to 1 s, and NVML
does not say how long: between two samples of a process it is the time between them; it is unknown for the first one.
It may be off by half a percent of the period, because NVML rounds; for a first sample, by the rest of a second."""

from __future__ import annotations

from collections.abc import Callable

from vfioctl.kernel.gpu_sharing import Samples
from vfioctl.sharing.model.gpu_time import Source, Usage

SHORTEST, LONGEST = 1 / 6, 1.0
"""Seconds of a sample's period (nvmlDeviceGetProcessUtilization, nvml.h)."""
_ROUNDING, _MOST_PERCENT = 0.005, 100
_MANY, _FORGET = 1024, 10.0
"""From so many processes on, those are forgotten that had no sample for so many seconds."""


class NvmlTime:
    """The samples seen so far. `name_of`: maps a process, which lived at a time in seconds since 1970, to the name of
    its group. Hundreds of samples come several times a second: each takes as little work as it can."""

    def __init__(self, name_of: Callable[[int, float], str]) -> None:
        self._name_of = name_of
        self._last: dict[str, dict[int, float]] = {}
        """When a process had its last sample, by GPU and process."""

    def take(self, sampled: Samples) -> list[Usage]:
        """Return the GPU time of the groups in new samples of a GPU. A sample out of order counts nothing."""
        last, name_of = self._last.setdefault(sampled.gpu, {}), self._name_of
        sums: dict[str, list[float]] = {}
        for pid, microseconds, percent in sampled.samples:
            at = microseconds / 1e6
            since = at - last.get(pid, 0.0)
            if -LONGEST < since <= 0:
                continue
            last[pid] = at
            if not percent or since < 0:  # it was idle; or the clock was set back
                continue
            percent = min(percent, _MOST_PERCENT)  # noqa: PLW2901 - as fast as can be
            of_group = sums.get(name := name_of(pid, at))
            if of_group is None:
                of_group = sums[name] = [0.0, 0.0, 0.0]
            if since <= LONGEST:
                of_group[0] += percent * since
                of_group[1] += since
            else:
                of_group[0] += percent * SHORTEST
                of_group[1] += SHORTEST
                of_group[2] += percent
        if len(last) > _MANY:
            self._forget(last, max((sample[1] / 1e6 for sample in sampled.samples), default=0.0))
        return [_usage(name, sampled.gpu, *of_group) for name, of_group in sums.items()]

    @staticmethod
    def _forget(last: dict[int, float], now: float) -> None:
        for pid in [pid for pid, at in last.items() if at < now - _FORGET]:
            del last[pid]


def _usage(group: str, gpu: str, used: float, sampled: float, first: float) -> Usage:
    """`used`: the sum of percentages times seconds. `sampled`: the sum of periods. `first`: of percentages in samples
    that were a process's first."""
    error = _ROUNDING * sampled + (LONGEST - SHORTEST) * first / 100
    return Usage(group, gpu, Source.NVML, used / 100, error)
