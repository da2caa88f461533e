"""Chooses whole cores for a claim: on the fewest L3 caches, then with the fewest free CPUs left at these. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from vfioctl.core.frozen import value_class
from vfioctl.placement.model.capacity import Capacity, Core


@value_class
class FreeCores:
    """The free cores of one node, by L3 cache."""

    node: int
    caches: tuple[tuple[Core, ...], ...]

    @property
    def cpus(self) -> int:
        return sum(len(core.cpus) for cores in self.caches for core in cores)


def free_cores(capacity: Capacity) -> Mapping[int, FreeCores]:
    """Return each node's cores of which all CPUs are free. Isolated ones are free for realtime only."""
    used = {*capacity.taken.cpus, *capacity.pinned, *capacity.settings.reserved_cpus, *capacity.housekeeping}
    used |= set() if capacity.realtime else capacity.topology.isolated
    free = {}
    for node, cores in capacity.topology.by_node.items():
        caches: dict[int | None, list[Core]] = {}
        for core in cores:
            if used.isdisjoint(core.cpus):
                caches.setdefault(core.cache, []).append(core)
        free[node] = FreeCores(node, tuple(map(tuple, caches.values())))
    return free


def choose_isolated(free: FreeCores, cpus: int, isolated: frozenset[int]) -> tuple[Core, ...]:
    """Return the same as `choose_cores`, of isolated cores as far as there are such."""
    first, rest = (
        tuple(tuple(core for core in cores if isolated.issuperset(core.cpus) is of_these) for cores in free.caches)
        for of_these in (True, False)
    )
    room = sum(len(core.cpus) for cores in first for core in cores)
    if room >= cpus:
        return choose_cores(FreeCores(free.node, first), cpus)
    chosen = (*(core for cores in first for core in cores), *choose_cores(FreeCores(free.node, rest), cpus - room))
    return tuple(sorted(chosen, key=lambda core: core.cpus))


def choose_cores(free: FreeCores, cpus: int) -> tuple[Core, ...]:
    """Return whole cores with at least this number of CPUs, which must be free."""
    chosen: list[Core] = []
    missing = cpus
    for core in (core for cores in _caches(free, cpus) for core in cores):
        if missing > 0:
            chosen.append(core)
            missing -= len(core.cpus)
    return tuple(sorted(_without_spare(chosen, -missing), key=lambda core: core.cpus))


def _caches(free: FreeCores, cpus: int) -> Sequence[tuple[Core, ...]]:
    """Return the fewest caches that have this number of CPUs, with the fewest in all; the smallest of them first."""
    sizes = [sum(len(core.cpus) for core in cores) for cores in free.caches]
    number = fewest(sizes, cpus)
    # reached[n][k]: the sums that k of the first n caches can have, as the bits of a number
    reached = [[1, *(0 for _ in range(number))]]
    for size in sizes:
        last = reached[-1]
        reached.append([1, *(last[k] | last[k - 1] << size for k in range(1, number + 1))])
    enough = reached[-1][number] >> cpus
    total = cpus + (enough & -enough).bit_length() - 1
    caches = []
    for index in range(len(sizes) - 1, -1, -1):
        if not reached[index][number] >> total & 1:
            caches.append(index)
            total, number = total - sizes[index], number - 1
    return [free.caches[index] for index in sorted(caches, key=lambda index: (sizes[index], index))]


def fewest(sizes: Iterable[int], wanted: int) -> int:
    """Return the smallest number of these that reaches the sum; all of them if none does."""
    number = total = 0
    for size in sorted(sizes, reverse=True):
        if total >= wanted:
            break
        total, number = total + size, number + 1
    return number


def _without_spare(cores: Sequence[Core], spare: int) -> Sequence[Core]:
    """Return the cores without those that are not needed, where cores differ in their number of CPUs."""
    kept = list(cores)
    for core in reversed(cores):
        if len(core.cpus) <= spare:
            kept.remove(core)
            spare -= len(core.cpus)
    return kept


def shares(wanted: int, rooms: Sequence[int], weights: Sequence[int], *, unit: int = 1) -> list[int]:
    """Divide a number in proportion to weights, in whole units, as far as there is room: the rooms have it together."""
    counts = []
    for index, room in enumerate(rooms):
        later, weight = sum(rooms[index + 1 :]), sum(weights[index:])
        fair = -(-wanted * weights[index] // (weight or 1))
        share = min(room, wanted, max(-(-fair // unit) * unit, wanted - later))
        counts.append(share)
        wanted -= share
    return counts
