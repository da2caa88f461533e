"""Which GPU of a node gets each container of a pod. Pure.

A container has its memory from one GPU. All containers of a pod go to one GPU if one has room for them, as with
gpushare, else to several. Of GPUs that have room, the one with the least free is taken: larger pods still fit then."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

_STEPS = 1000
"""How many GPUs are tried for the containers of one pod on one node. Without a limit, a pod with many containers would
keep the scheduler waiting."""
MOST_CONTAINERS = 200
"""A pod of which more containers ask for memory fits nowhere: it would cost much time and memory."""


class Container(NamedTuple):
    """A container that asks for memory of a GPU."""

    name: str
    memory: int
    """In units, at least 1."""
    is_first: bool = False
    """Whether it has ended when the pod's other containers start, so that these get the same memory."""
    position: int = 0
    """Its position among the pod's containers; of an init container among these."""


def place(containers: Sequence[Container], free: Sequence[int]) -> Mapping[str, int] | None:
    """Return the index of the GPU for each container, by name; None if they do not fit. `free`: units, by index."""
    if len(containers) > MOST_CONTAINERS:
        return None
    main = [container for container in containers if not container.is_first]
    indexes = pack(tuple(container.memory for container in main), tuple(free))
    if indexes is None:
        return None
    placed = {container.name: index for container, index in zip(main, indexes, strict=True)}
    held = held_by(main, placed, len(free))
    for container in (container for container in containers if container.is_first):
        fitting = [index for index, left in enumerate(free) if container.memory <= left]
        if not fitting:
            return None
        index = min(fitting, key=lambda gpu: (max(0, container.memory - held[gpu]), free[gpu], gpu))
        placed[container.name] = index
        held[index] = max(held[index], container.memory)
    return placed


def held_by(containers: Iterable[Container], indexes: Mapping[str, int], count: int) -> list[int]:
    """Return the units that a pod's containers hold of each of a node's GPUs. `indexes`: by the container's name; those
    that have none, or one that the node has not, hold nothing."""
    main, first = [0] * count, [0] * count
    for container in containers:
        index = indexes.get(container.name, -1)
        if not 0 <= index < count:
            continue
        if container.is_first:
            first[index] = max(first[index], container.memory)
        else:
            main[index] += container.memory
    return list(map(max, main, first))


@lru_cache(4096)  # nodes are alike, and each is asked about in filter, prioritize and bind
def pack(wanted: tuple[int, ...], free: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return an index of `free` for each wanted number of units, so that no GPU gives more than it has free; None if
    there is no such choice, or none was found in a limited number of steps."""
    total = sum(wanted)
    if (one := _best(total, free)) is not None:
        return (one,) * len(wanted)
    if len(wanted) < 2 or total > sum(free) or max(wanted) > max(free, default=0):
        return None
    return _greedy(wanted, free) or _Search(wanted, free).result()


def _greedy(wanted: Sequence[int], free: Sequence[int]) -> tuple[int, ...] | None:
    """The best GPU for one container after another, the largest first: most often that is enough."""
    left, chosen = list(free), [0] * len(wanted)
    for item in sorted(range(len(wanted)), key=wanted.__getitem__, reverse=True):
        index = _best(wanted[item], left)
        if index is None:
            return None
        left[index] -= wanted[item]
        chosen[item] = index
    return tuple(chosen)


def _best(wanted: int, free: Sequence[int]) -> int | None:
    """The GPU with the least free that fits; the first of equals."""
    return min((index for index, left in enumerate(free) if wanted <= left), key=free.__getitem__, default=None)


class _Search:
    """Tries GPUs for one container after another, the largest first; forgets no choice that could fit."""

    def __init__(self, wanted: Sequence[int], free: Sequence[int]) -> None:
        self._order = sorted(range(len(wanted)), key=lambda item: (-wanted[item], item))
        self._wanted, self._free = wanted, list(free)
        self._chosen = [0] * len(wanted)
        self._hopeless: set[tuple[int, ...]] = set()
        self._steps = 0

    def result(self) -> tuple[int, ...] | None:
        return tuple(self._chosen) if self._fits(0) else None

    def _fits(self, depth: int) -> bool:
        if depth == len(self._order):
            return True
        state = (depth, *sorted(self._free))  # GPUs with the same free units are the same to what follows
        if state in self._hopeless:
            return False
        item, tried = self._order[depth], set[int]()
        for index in sorted(range(len(self._free)), key=self._free.__getitem__):
            left = self._free[index]
            if left < self._wanted[item] or left in tried or self._steps >= _STEPS:
                continue
            tried.add(left)
            self._steps += 1
            self._free[index] -= self._wanted[item]
            self._chosen[item] = index
            if self._fits(depth + 1):
                return True
            self._free[index] = left
        self._hopeless.add(state)
        return False
