"""Deficit round robin over the control groups of one GPU: who is frozen until the next tick. Pure arithmetic.

Each round gives each group that wants the GPU a quantum of GPU time, in proportion to its weight, and a group pays what
it uses. One that has used up its quantum is frozen while another one has some left; when none has, the next round
begins. What a group used too much, because it runs for a minimum time and its submitted work ends by itself, it pays in
later rounds, so that long-run shares follow the weights. One that does not use its quantum does not keep it. One that
leaves the GPU idle while others are frozen for it wants little: nobody waits for it for a while.

Source: Shreedhar and Varghese, "Efficient fair queuing using deficit round-robin", 1996."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

PATIENCE = 2.0
"""Seconds without GPU time after which a group does not want the GPU; longer than any sample of NVML is late."""
LEAST_LOAD = 0.5
"""Load below which the GPU is not used by those who have quantum left, while others are frozen."""
_FIRST_REST, _LONGEST_REST = 4.0, 64.0
"""Seconds for which nobody waits for a group that has left the GPU idle: doubled each time."""
_LATEST = 2.0
"""Seconds of a tick that count for what a group may use too much: one that came later was an accident."""
LONGEST_FREEZE = 60.0
"""Seconds after which a group is thawed in any case."""
_SMOOTHED = 1.0
"""Seconds over which load is averaged."""


@dataclass
class _Standing:
    deficit: float = 0.0
    ran: float = 0.0
    """Seconds since it was thawed."""
    frozen: float = 0.0
    """Seconds since it was frozen."""
    idle: float = PATIENCE
    """Seconds without GPU time."""
    rest: float = 0.0
    """Seconds for which nobody waits for it yet."""
    next_rest: float = _FIRST_REST


class DeficitRounds:
    """The rounds of one GPU. `weights`: of all groups; `quantum`: GPU seconds of a group of mean weight in a round;
    `min_run`: seconds that a group runs at least; `late`: seconds by which usage may become known late."""

    def __init__(self, weights: Mapping[str, float], *, quantum: float, min_run: float, late: float = 0.0) -> None:
        self._weights, self._quantum, self._min_run, self._late = weights, quantum, min_run, late
        self._standings = {group: _Standing() for group in weights}
        self._frozen: frozenset[str] = frozenset()
        self._load, self._underused = 1.0, 0.0
        self._longest = 0.0

    def tick(
        self,
        seconds: float,
        used: Mapping[str, float],
        *,
        fixed: Collection[str] = (),
        absent: Collection[str] = (),
    ) -> frozenset[str]:
        """Return the groups to be frozen until the next tick. `seconds`: since the last one. `used`: GPU seconds since
        then. `fixed`: groups that cannot be frozen. `absent`: groups that are frozen on account of another GPU."""
        self._longest = min(max(self._longest, seconds), _LATEST)
        for group, standing in self._standings.items():
            self._pay(group, standing, seconds, used.get(group, 0.0))
        active = [group for group, standing in self._standings.items() if standing.idle < PATIENCE]
        able = [group for group in active if group not in absent]
        present = [group for group in able if self._standings[group].rest <= 0] or able
        self._begin_rounds(seconds, sum(used.get(group, 0.0) for group in active), active, present)
        first = {group for group in present if self._standings[group].deficit > 0}
        frozen = frozenset(group for group in active if group not in fixed and self._is_due(group, active, first))
        for group in self._frozen - frozen:
            self._standings[group].ran = self._standings[group].idle = 0.0
        for group in frozen - self._frozen:
            self._standings[group].frozen = 0.0
            self._standings[group].next_rest = _FIRST_REST  # it wants much
        self._frozen = frozen
        return frozen

    def _pay(self, group: str, standing: _Standing, seconds: float, used: float) -> None:
        standing.deficit = max(standing.deficit - used, -self._too_much)
        standing.rest -= seconds
        if group in self._frozen:
            standing.frozen += seconds
            standing.idle = 0.0
        else:
            standing.ran += seconds
            standing.idle = 0.0 if used > 0 else standing.idle + seconds
        if standing.idle >= PATIENCE:
            standing.deficit = min(standing.deficit, 0.0)

    def _begin_rounds(self, seconds: float, used: float, active: Collection[str], present: Collection[str]) -> None:
        if not active:
            self._load, self._underused = 1.0, 0.0
            return
        self._load += (used / seconds - self._load) * min(1.0, seconds / _SMOOTHED) if seconds > 0 else 0.0
        self._underused = self._underused + seconds if self._frozen and self._load < LEAST_LOAD else 0.0
        quanta = self._quanta(active)
        rounds = 0
        if not any(self._standings[group].deficit > 0 for group in present):
            rounds = min((self._rounds(group, quanta) for group in present), default=0)
        elif self._underused >= PATIENCE:
            rounds, self._underused = 1, 0.0
            self._rest(group for group in present if group not in self._frozen)
        for group, standing in self._standings.items():
            most = quanta[group] if group in active else 0.0
            if standing.deficit < most:
                standing.deficit = min(standing.deficit + rounds * quanta[group], most)

    def _rest(self, groups: Iterable[str]) -> None:
        for standing in map(self._standings.__getitem__, groups):
            standing.rest = standing.next_rest
            standing.next_rest = min(2 * standing.next_rest, _LONGEST_REST)

    def _rounds(self, group: str, quanta: Mapping[str, float]) -> int:
        """Return after how many rounds a group may use the GPU."""
        return math.floor(max(0.0, -self._standings[group].deficit) / quanta[group]) + 1

    def _quanta(self, active: Collection[str]) -> dict[str, float]:
        mean = sum(self._weights[group] for group in active) / len(active)
        return {group: self._quantum * weight / mean for group, weight in self._weights.items()}

    def _is_due(self, group: str, active: Collection[str], first: Collection[str]) -> bool:
        standing = self._standings[group]
        if group in first or not first or standing.deficit > 0:
            return False
        if group in self._frozen:
            return standing.frozen < self.longest_freeze(group, active)
        return standing.ran >= self._min_run

    def longest_freeze(self, group: str, active: Collection[str] = ()) -> float:
        """Return the bound of a freeze, in seconds, among these groups, or among all: what the others may use until the
        group has paid the most that it can use too much, at the least load that counts as use; at most LONGEST_FREEZE.
        """
        among = {*(active or self._weights), group}
        quanta = self._quanta(among)
        rounds = math.floor(self._too_much / quanta[group]) + 1
        others = sum(quanta[other] + self._too_much for other in among if other != group)
        return min(rounds * others / LEAST_LOAD + PATIENCE + 2 * self._longest, LONGEST_FREEZE)

    @property
    def _too_much(self) -> float:
        """The most GPU seconds that a group can use too much, and so what it can owe: what it used while it could not
        be frozen is not held against it for ever."""
        return self._min_run + self._late + 2 * self._longest
