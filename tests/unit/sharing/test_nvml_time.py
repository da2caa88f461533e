"""GPU time from NVML's samples: their sum, whom they count for, and what it may be off."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vfioctl.kernel.gpu_sharing import Samples
from vfioctl.sharing.measuring.lease_time import LeaseTime
from vfioctl.sharing.measuring.names import GroupNames
from vfioctl.sharing.measuring.nvml_time import LONGEST, SHORTEST, NvmlTime
from vfioctl.sharing.model.gpu_time import OTHER, Source, Usage
from vfioctl.sharing.model.settings import MOST_GROUPS

GPU = "0000:41:00.0"
GROUPS = {1: "/a", 2: "/a", 3: "/b"}
BEGIN = 1_000_000_000.0


def take(time: NvmlTime, at: float, **percents: int) -> dict[str, Usage]:
    """`p1=40`: process 1 has 40 %."""
    samples = [(int(pid[1:]), round((BEGIN + at) * 1e6), part) for pid, part in percents.items()]
    return {usage.group: usage for usage in time.take(Samples(GPU, samples))}


@pytest.fixture
def time() -> NvmlTime:
    return NvmlTime(lambda pid, _: GROUPS.get(pid, OTHER))


def test_a_sample_counts_for_the_time_since_the_last_one(time: NvmlTime) -> None:
    take(time, 0, p1=50)
    used = take(time, 0.5, p1=50)["/a"]
    assert used[:3] == ("/a", GPU, Source.NVML)
    assert used[3:] == pytest.approx((0.25, 0.0025))


def test_the_first_sample_is_of_an_unknown_period(time: NvmlTime) -> None:
    used = take(time, 0, p1=100)["/a"]
    assert used.seconds == pytest.approx(SHORTEST)
    assert used.seconds + used.error >= LONGEST


def test_a_sample_after_a_pause_is_one_of_an_unknown_period(time: NvmlTime) -> None:
    take(time, 0, p1=100)
    assert take(time, 60, p1=100)["/a"].seconds == pytest.approx(SHORTEST)


def test_processes_of_a_group_add_up(time: NvmlTime) -> None:
    take(time, 0, p1=20, p2=30, p3=50, p9=1)
    used = take(time, 1, p1=20, p2=30, p3=50, p9=1)
    assert used["/a"].seconds == used["/b"].seconds == pytest.approx(0.5)
    assert used[OTHER].seconds == pytest.approx(0.01)


def test_a_sample_that_comes_twice_or_late_counts_once(time: NvmlTime) -> None:
    take(time, 0, p1=50)
    take(time, 0.5, p1=50)
    assert take(time, 0.5, p1=50) == take(time, 0.2, p1=50) == {}


def test_a_process_pays_nothing_for_the_time_before_it_that_it_was_idle(time: NvmlTime) -> None:
    take(time, 0, p1=50)
    for tenths in range(2, 10):
        assert take(time, tenths / 10, p1=0) == {}
    assert take(time, 1, p1=100)["/a"].seconds == pytest.approx(0.1)


def test_a_clock_that_is_set_back_costs_one_sample(time: NvmlTime) -> None:
    take(time, 1000, p1=100)
    assert take(time, 10, p1=100) == {}
    assert take(time, 10.5, p1=100)["/a"].seconds == pytest.approx(0.5)


def test_more_than_all_is_all(time: NvmlTime) -> None:
    take(time, 0, p1=100)
    assert take(time, 1, p1=4_000_000)["/a"].seconds == pytest.approx(1.0)


@given(st.lists(st.tuples(st.floats(0.17, 1.0), st.integers(0, 100)), min_size=2, max_size=50))
def test_the_sum_is_within_its_error(samples: list[tuple[float, int]]) -> None:
    time, at, used, error, true = NvmlTime(lambda *_: "/a"), 0.0, 0.0, 0.0, 0.0
    for period, percent in samples:
        at += period
        true += period * percent / 100
        if usage := take(time, at, p1=percent).get("/a"):
            used, error = used + usage.seconds, error + usage.error
    assert abs(used - true) <= error + 1e-4


def test_what_is_gone_is_forgotten(time: NvmlTime) -> None:
    for number in range(5000):
        take(time, number, **{f"p{number}": 1})
    assert len(time._last[GPU]) < 1100


class TestNames:
    def test_a_listed_group_has_all_below_it(self) -> None:
        names = GroupNames(["/a/b", "/c"])
        found = [names.name_of(path) for path in ("/a/b", "/a/b/c/d", "/a/bc", "/a", "/c/x", "/", None)]
        assert found == ["/a/b", "/a/b", OTHER, OTHER, "/c", OTHER, OTHER]

    def test_without_a_list_there_is_a_bounded_number_of_names(self) -> None:
        names = GroupNames()
        found = {names.name_of(f"/user/{number}") for number in range(10_000)}
        assert len(found) == MOST_GROUPS + 1
        assert OTHER in found

    def test_a_name_that_is_too_long_is_none_of_its_own(self) -> None:
        assert GroupNames().name_of("/" + "x" * 5000) == OTHER


class TestLeases:
    def test_time_is_by_the_clock_and_labelled_so(self) -> None:
        lease = LeaseTime()
        lease.take({GPU: "vm/a"}, 10)
        assert lease.take({GPU: "vm/a"}, 12) == [Usage("vm/a", GPU, Source.LEASE, 2, 0)]

    def test_a_lease_that_began_since_may_be_off_by_that(self) -> None:
        lease = LeaseTime()
        lease.take({GPU: "vm/a"}, 10)
        assert lease.take({GPU: "vm/b"}, 12) == [Usage("vm/b", GPU, Source.LEASE, 0, 2)]
