"""Freezes and thaws listed control groups. Each group is announced to a watchdog before it is frozen, so that it is
thawed when this process ends, however it ends. May not decide who is to be frozen."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from vfioctl.errors import HostError, KernelRefused
from vfioctl.kernel.gpu_sharing import ENDED

if TYPE_CHECKING:
    from vfioctl.kernel.gpu_sharing import ControlGroups, ThawWatchdog

_AT_ONCE = 0.05
"""Seconds for which a freeze is waited for. A process in an uninterruptible sleep freezes later."""
_MARGIN = 5.0
"""Seconds after its bound at which the watchdog thaws a group itself, should this process hang."""
_AGAIN = 10.0
"""Seconds after which a watchdog is started again that could not be."""
_REFUSED_FOR, _SLOW, _SLOW_FOR = 5.0, 1.0, 60.0
"""Seconds for which a refusal is good; from how many on it was slow, for which it is good longer: all groups wait."""
_log = logging.getLogger("vfioctl.sharing")


class _Freeze:
    """One group that is frozen, or is to be."""

    def __init__(self, now: float) -> None:
        self.since = self.counted = now
        self.is_complete = False


class Throttle:
    """The groups that this process has frozen. `why`: why a group is not frozen, empty if it may be: asked before each
    freeze, and again once no process of it can change anything. `measured`: called with the latency of each freeze in
    seconds, from the write until all processes are frozen."""

    def __init__(
        self,
        groups: ControlGroups,
        start_watchdog: Callable[[], ThawWatchdog],
        why: Callable[[str], str],
        measured: Callable[[float], None],
    ) -> None:
        self._groups, self._start, self._why, self._measured = groups, start_watchdog, why, measured
        self._watchdog: ThawWatchdog | None = None
        self._again = 0.0
        self._frozen: dict[str, _Freeze] = {}
        self.seconds: dict[str, float] = {}
        """How long each group was frozen in all."""
        self._refused: dict[str, tuple[float, str]] = {}
        self.problem = ""
        """Why no group can be frozen; empty if it can."""

    @property
    def frozen(self) -> frozenset[str]:
        """The groups that are frozen by this process."""
        return frozenset(self._frozen)

    @property
    def refused(self) -> dict[str, str]:
        """Why groups that were to be frozen were not, by path: for some seconds, after which they are tried again."""
        now = time.monotonic()
        return {path: reason for path, (until, reason) in self._refused.items() if until > now}

    @property
    def watchdog_pid(self) -> int:
        """The process of the watchdog; 0 without."""
        return self._watchdog.pid if self._watchdog else 0

    def apply(self, wanted: Collection[str], bound: Callable[[str], float]) -> None:
        """Freeze these groups and thaw all others. `bound`: after how many seconds a group is thawed in any case. A
        group that cannot be frozen or has ended costs itself only."""
        now = time.monotonic()
        self._count(now)
        for path in [*self._frozen]:
            if path not in wanted or now - self._frozen[path].since >= bound(path) or not self._still(path, now):
                self._thaw(path)
        if not (wanted or self.problem) or not self._is_watched(now):
            return
        todo = [path for path in wanted if path not in self._frozen]
        for path in todo:
            if not self._watchdog:
                break
            begun = time.monotonic()
            reason = self._freeze(path, bound(path))
            if reason and self._refused.get(path, (0.0, ""))[1] != reason:
                _log.warning("not frozen: %s", reason, extra={"cgroup": path})
            if reason:
                ended = time.monotonic()
                self._refused[path] = ended + (_SLOW_FOR if ended > begun + _SLOW else _REFUSED_FOR), reason
            else:
                self._refused.pop(path, None)

    def close(self) -> None:
        """Thaw everything, and end the watchdog."""
        self._count(time.monotonic())
        for path in [*self._frozen]:
            self._thaw(path)
        if self._watchdog:
            self._watchdog.close()
            self._watchdog = None

    def _count(self, now: float) -> None:
        for path, freeze in self._frozen.items():
            self.seconds[path] = self.seconds.get(path, 0.0) + now - freeze.counted
            freeze.counted = now

    def _still(self, path: str, now: float) -> bool:
        """Return whether a group is frozen by us still: nobody has thawed it, and it exists."""
        try:
            state = self._groups.state(path)
        except KernelRefused:
            return False
        freeze = self._frozen[path]
        if state.frozen and not freeze.is_complete:
            freeze.is_complete = True
            self._measured(now - freeze.since)
        return state.asked

    def _is_watched(self, now: float) -> bool:
        if self._watchdog and not self._watchdog.is_alive:
            self._give_up("the watchdog that thaws has ended")
            self._again = now
        if self._watchdog is None and now >= self._again:
            try:
                self._watchdog, self.problem = self._start(), ""
            except HostError as error:
                self.problem, self._again = error.message, now + _AGAIN
                _log.error("no group is frozen: %s", error.message)
        return self._watchdog is not None

    def _give_up(self, problem: str) -> None:
        """Thaw everything, because the watchdog does not answer."""
        _log.error("%s: all groups are thawed", problem)
        for path in [*self._frozen]:
            self._thaw(path)
        if self._watchdog:
            self._watchdog.close()
        self._watchdog, self.problem, self._again = None, problem, time.monotonic() + _AGAIN

    def _freeze(self, path: str, bound: float) -> str:
        """Freeze a group; return why not, if it was not."""
        if reason := self._why(path):
            return reason
        try:
            if self._groups.state(path).asked:
                return "somebody else has frozen it"
            return self._frozen_by_us(path, bound)
        except KernelRefused as refused:
            return f"{refused.symbol}: {refused.path}"

    def _frozen_by_us(self, path: str, bound: float) -> str:
        assert self._watchdog
        try:
            self._watchdog.announce(path, bound + _MARGIN)
        except HostError as error:
            self._give_up(error.message)
            return error.message
        freeze = self._frozen[path] = _Freeze(time.monotonic())
        try:
            self._groups.set_frozen(path, frozen=True)
            freeze.is_complete = self._groups.await_frozen(path, _AT_ONCE)
        except KernelRefused:
            self._thaw(path)
            raise
        if freeze.is_complete:
            self._measured(time.monotonic() - freeze.since)
        if reason := self._why(path):
            self._thaw(path)
            return reason
        _log.info("frozen", extra={"cgroup": path})
        return ""

    def _thaw(self, path: str) -> None:
        """Thaw a group. One that cannot be thawed is tried again with each tick, and the watchdog keeps it."""
        try:
            self._groups.set_frozen(path, frozen=False)
        except KernelRefused as refused:
            if self._is_asked(path):
                _log.error("not thawed: %s", refused.symbol, extra={"cgroup": path})
                return
        else:
            _log.info("thawed", extra={"cgroup": path})
        del self._frozen[path]
        if self._watchdog:
            self._watchdog.retract(path)

    def _is_asked(self, path: str) -> bool:
        """Return whether a group is or may be frozen."""
        try:
            return self._groups.state(path).asked
        except KernelRefused as refused:
            return refused.errno not in ENDED
