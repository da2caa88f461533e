"""How long a worker has not answered, without the time in which it waited for a processor. Reads /proc only. A timeout
means that the kernel, a device or a daemon does not answer, not that the machine is busy."""

from __future__ import annotations

import math
import os
import time
from typing import NamedTuple

from vfioctl.kernel.worker.processes import process_text, state_of

BUSY_TIMEOUT = 60.0
"""Seconds that a worker may wait for a processor beyond its timeout, before it is given up all the same."""
_LOOKS = 4
"""Looks during a timeout. Time between two of them counts at most twice: the caller may have been kept waiting too."""
_SHORTEST_PAUSE = 0.02
_WAITING_STATES = ("R", "T", "t")
_WAITING_PLACES = frozenset(
    {
        "do_freezer_trap", "get_signal", "__refrigerator",  # frozen: kernel/cgroup/freezer.c, kernel/freezer.c
        "folio_wait_bit_common", "wait_on_page_bit_common", "__lock_page_or_retry",  # for a page: mm/filemap.c
        "do_swap_page", "throttle_direct_reclaim", "mem_cgroup_handle_over_high",  # for memory: mm/
    }
)  # fmt: skip
"""Where in the kernel a process is that is frozen, or waits for a page or for memory."""


class _Usage(NamedTuple):
    """A process: whether it waits for a processor or for memory, or is stopped; seconds of running, and of waiting."""

    is_kept_waiting: bool
    running: float
    waiting: float


_NEW = _Usage(is_kept_waiting=False, running=0.0, waiting=0.0)


class Unreturned(Exception):
    """The worker did not answer within the timeout. `state`: state, wchan and stack of its process; `pid`: its pid."""

    def __init__(self, pid: int, seconds: float, why: str = "") -> None:
        self.pid, self.seconds, self.state = pid, seconds, state_of(pid)
        super().__init__(f"no answer in {seconds:g} s{why}")


class Stall:
    """The time for which a worker has not answered.

    Time counts while the worker sleeps in the kernel (states S and D) and while it really runs. It does not count while
    the worker waits for a processor (state R, also when its control group is throttled), is stopped or frozen, or waits
    for memory (Documentation/scheduler/sched-stats.rst, proc_pid_stat(5))."""

    def __init__(self, timeout: float) -> None:
        self.timeout, self.interval = timeout, timeout / _LOOKS
        """Seconds, and seconds between two looks."""
        self.begin(0)

    def begin(self, pid: int, *, since: _Usage | None = None) -> None:
        """Counts from now: the worker has answered or started. `pid`: 0 before it has; `since`: what it had used."""
        self.pid, self._counted, self._usage = pid, 0.0, since
        self._began = self._looked = time.monotonic()

    def take_up(self, pid: int) -> None:
        """Names the worker, which was started for this; its time counts from `begin`."""
        self.pid, self._usage = pid, _NEW

    @property
    def passed(self) -> float:
        """Seconds since `begin`."""
        return time.monotonic() - self._began

    @property
    def pause(self) -> float:
        """Seconds until the next look."""
        left = self.timeout - self._counted - (time.monotonic() - self._looked)
        return max(min(self.interval, left), _SHORTEST_PAUSE if self._counted else 0.0)

    def is_over(self) -> bool:
        """Counts the time since the last look. Returns whether the timeout is over."""
        now, most = time.monotonic(), math.inf if self._usage is _NEW else 2 * self.interval
        passed = now - self._looked
        if passed < min(self.interval, self.timeout - self._counted) / 2:
            return False
        before, usage = self._usage, _usage_of(self.pid)
        self._looked, self._usage = now, usage
        self._counted += min(_counting(before, usage, passed), most)
        return self._counted >= self.timeout or self.passed >= self.timeout + BUSY_TIMEOUT

    def error(self) -> Unreturned:
        """The error for a worker that did not answer until now."""
        if self._counted >= self.timeout or not self.pid:
            return Unreturned(self.pid, self.timeout)
        return Unreturned(self.pid, float(round(self.passed)), ": the machine is too busy, or the process is stopped")


def _counting(before: _Usage | None, usage: _Usage | None, passed: float) -> float:
    """The part of `passed` seconds that counts."""
    if usage is None:
        return passed
    before = before or usage
    slept = 0.0 if usage.is_kept_waiting else passed - (usage.waiting - before.waiting)
    return min(max(slept, usage.running - before.running), passed)


def waited_for_processor(pid: int) -> float:
    """The seconds for which a process has waited for a processor in its life; 0 where that is unknown."""
    return _scheduled(pid)[1]


def _usage_of(pid: int) -> _Usage | None:
    """None for a process that has ended, or that /proc does not show."""
    state, *fields = process_text(pid, "stat").rpartition(")")[2].split() or [""]
    if not state:
        return None
    running, waiting = _scheduled(pid)
    if running is None:
        running = (int(fields[10]) + int(fields[11])) / os.sysconf("SC_CLK_TCK")
    is_kept = state in _WAITING_STATES or process_text(pid, "wchan") in _WAITING_PLACES
    return _Usage(is_kept, running, waiting)


def _scheduled(pid: int) -> tuple[float | None, float]:
    """Seconds of running and of waiting for a processor; None and 0 where the kernel does not count (SCHED_INFO)."""
    fields = process_text(pid, "schedstat").split()
    return (int(fields[0]) / 1e9, int(fields[1]) / 1e9) if len(fields) > 1 else (None, 0.0)
