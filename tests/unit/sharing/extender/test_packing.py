"""Which GPUs containers get: never more than is free, and no refusal of what fits."""

from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from vfioctl.sharing.extender.packing import Container, held_by, pack, place

units = st.integers(1, 12)
free_units = st.lists(st.integers(0, 12), max_size=4)


def fits(wanted: list[int], free: list[int]) -> bool:
    """Every choice is tried."""
    return any(
        all(sum(w for w, at in zip(wanted, choice, strict=True) if at == gpu) <= free[gpu] for gpu in range(len(free)))
        for choice in product(range(len(free)), repeat=len(wanted))
    )


@settings(deadline=None)  # the machine may be busy
@given(st.lists(units, min_size=1, max_size=5), free_units)
def test_no_gpu_gives_more_than_it_has_and_only_what_cannot_fit_is_refused(wanted: list[int], free: list[int]) -> None:
    indexes = pack(tuple(wanted), tuple(free))
    assert (indexes is not None) == fits(wanted, free)
    for gpu, left in enumerate(free):
        assert sum(w for w, at in zip(wanted, indexes or (), strict=bool(indexes)) if at == gpu) <= left


@settings(deadline=None)  # the machine may be busy
@given(units, free_units)
def test_one_container_gets_the_gpu_with_the_least_free_that_fits(wanted: int, free: list[int]) -> None:
    indexes = pack((wanted,), tuple(free))
    best = min((left for left in free if left >= wanted), default=None)
    assert (free[indexes[0]] if indexes else None) == best


@settings(deadline=None)  # the machine may be busy
@given(st.lists(units, min_size=2, max_size=4), free_units)
def test_containers_stay_together_where_one_gpu_has_room(wanted: list[int], free: list[int]) -> None:
    indexes = pack(tuple(wanted), tuple(free))
    if sum(wanted) <= max(free, default=0):
        assert indexes
        assert len(set(indexes)) == 1


@settings(deadline=None)  # the machine may be busy
@given(
    st.lists(st.builds(Container, st.sampled_from("abcdef"), units, st.booleans()), unique_by=lambda c: c.name),
    free_units,
)
def test_containers_that_run_first_share_with_those_that_follow(containers: list[Container], free: list[int]) -> None:
    indexes = place(containers, free)
    main = [c.memory for c in containers if not c.is_first]
    possible = (not main or fits(main, free)) and all(
        c.memory <= max(free, default=0) for c in containers if c.is_first
    )
    if containers:
        assert (indexes is not None) == (possible and (bool(free) or not containers))
    if indexes is not None:
        assert set(indexes) == {c.name for c in containers}
        assert all(held <= left for held, left in zip(held_by(containers, indexes, len(free)), free, strict=True))


def test_a_container_that_ran_first_takes_no_memory_from_the_next() -> None:
    containers = [Container("prepare", 8, is_first=True), Container("train", 8)]
    assert place(containers, [8]) == {"train": 0, "prepare": 0}
    assert held_by(containers, {"train": 0, "prepare": 0}, 1) == [8]


def test_a_search_ends() -> None:
    """Thirty containers that just do not fit would take years."""
    wanted = tuple([7] * 15 + [5] * 15)
    assert pack(wanted, (23,) * 8) is None


def test_an_index_that_a_node_has_not_holds_nothing() -> None:
    assert held_by([Container("a", 8), Container("b", 4)], {"a": 7, "b": 1}, 2) == [0, 4]
