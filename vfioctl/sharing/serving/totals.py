"""GPU time since the service began, for its metrics: a bounded number of names. May be read by other threads."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from vfioctl.sharing.model.gpu_time import OTHER, Key, Source, Usage, added

_WINDOW = 30.0
"""Seconds over which shares are told."""
_MOST, _UNUSED = 8192, 3600.0
"""Series of a metric. When there are so many, one that was not used for so many seconds makes room for a new one."""


class Counted(NamedTuple):
    """What is told of the service at one time."""

    times: Mapping[Key, tuple[float, float]]
    """Seconds and error in all."""
    shares: Mapping[tuple[str, str], float]
    """Part of the GPU time that was used in the last half minute, by group and GPU."""
    busy: Mapping[tuple[str, str], float]
    """In which part of the last half minute a group used a GPU."""
    memory: Mapping[tuple[str, str], int]
    """Bytes of the memory of a GPU that a group has."""
    frozen: frozenset[str]
    frozen_seconds: Mapping[str, float]


class Totals:
    """Adds up usage."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times: dict[Key, tuple[float, float]] = {}
        self._used_at: dict[Key, float] = {}
        """When each was used last; the oldest first."""
        self._recent: deque[tuple[float, dict[Key, tuple[float, float]]]] = deque()
        self._memory: Mapping[tuple[str, str], int] = {}
        self._frozen: frozenset[str] = frozenset()
        self._frozen_seconds: dict[str, float] = {}

    def add(self, usages: Iterable[Usage], now: float) -> None:
        """Add usage. `now`: seconds on a monotonic clock."""
        sums = added(usages)
        with self._lock:
            for key, (seconds, error) in sums.items():
                kept = self._kept(key, now)
                before = self._times.get(kept, (0.0, 0.0))
                self._times[kept] = before[0] + seconds, before[1] + error
            self._recent.append((now, sums))
            while self._recent and self._recent[0][0] < now - _WINDOW:
                self._recent.popleft()

    def _kept(self, key: Key, now: float) -> Key:
        """Return under which key one is counted."""
        if key not in self._times and len(self._times) >= _MOST:
            oldest = next(iter(self._used_at))
            if self._used_at[oldest] > now - _UNUSED:
                return OTHER, *key[1:]
            del self._times[oldest], self._used_at[oldest]
        self._used_at.pop(key, None)
        self._used_at[key] = now
        return key

    def set_memory(self, memory: Mapping[tuple[str, str], int]) -> None:
        """Replace how many bytes of each GPU's memory each group has."""
        with self._lock:
            self._memory = memory

    def set_frozen(self, frozen: frozenset[str], seconds: Mapping[str, float]) -> None:
        """Replace which groups are frozen, and for how long each one was in all."""
        with self._lock:
            self._frozen, self._frozen_seconds = frozen, dict(seconds)

    def counted(self) -> Counted:
        """Return what is counted now."""
        with self._lock:
            recent = [*self._recent]
            times, frozen, memory = dict(self._times), (self._frozen, self._frozen_seconds), self._memory
        used = _used(sums for _, sums in recent[1:])  # the first is of the time before it
        lasted = recent[-1][0] - recent[0][0] if recent else 0.0
        busy = {key: min(1.0, seconds / lasted) for key, seconds in used.items()} if lasted else {}
        return Counted(times, _shares(_used(sums for _, sums in recent)), busy, memory, *frozen)


def _used(recent: Iterable[Mapping[Key, tuple[float, float]]]) -> dict[tuple[str, str], float]:
    """Return the seconds by group and GPU."""
    used: dict[tuple[str, str], float] = {}
    for sums in recent:
        for (group, gpu, source), (seconds, _) in sums.items():
            if source is not Source.LEASE:
                used[group, gpu] = used.get((group, gpu), 0.0) + seconds
    return used


def _shares(used: Mapping[tuple[str, str], float]) -> dict[tuple[str, str], float]:
    whole: dict[str, float] = {}
    for (_, gpu), seconds in used.items():
        whole[gpu] = whole.get(gpu, 0.0) + seconds
    return {key: seconds / whole[key[1]] if whole[key[1]] else 0.0 for key, seconds in used.items()}
