"""Joins the rounds of several GPUs to one answer: a control group is frozen as a whole. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from vfioctl.sharing.fairness.deficit_rounds import DeficitRounds


class FairShares:
    """The rounds of all GPUs. `rounds`: makes those of a GPU that is used for the first time."""

    def __init__(self, rounds: Callable[[], DeficitRounds]) -> None:
        self._make = rounds
        self._rounds: dict[str, DeficitRounds] = {}
        self._frozen: dict[str, frozenset[str]] = {}

    def tick(
        self, seconds: float, used: Mapping[str, Mapping[str, float]], *, fixed: Collection[str] = ()
    ) -> frozenset[str]:
        """Return the groups to be frozen until the next tick. `used`: GPU seconds by GPU and group; `fixed`: groups
        that cannot be frozen. A group that is frozen for one GPU keeps nobody waiting for another one."""
        for gpu in used:
            self._rounds.setdefault(gpu, self._make())
        for gpu, rounds in self._rounds.items():
            absent = {group for other, groups in self._frozen.items() if other != gpu for group in groups}
            frozen = rounds.tick(seconds, used.get(gpu, {}), fixed=fixed, absent=absent)
            self._frozen[gpu] = frozen
        return frozenset().union(*self._frozen.values())

    def longest_freeze(self, group: str) -> float:
        """Return the bound of a freeze in seconds, on the GPU where it is longest."""
        return max((rounds.longest_freeze(group) for rounds in self._rounds.values()), default=0.0)
