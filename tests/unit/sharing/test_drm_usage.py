"""GPU time from the texts of /proc/PID/fdinfo, as amdgpu, i915 and xe write them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vfioctl.sharing.measuring.drm_fdinfo import DrmClient, client_in
from vfioctl.sharing.measuring.drm_time import DrmTime
from vfioctl.sharing.model.gpu_time import Usage

FILES = Path(__file__).with_name("fdinfo")
A, B = "/a.slice", "/b.slice"
SECOND = 1_000_000_000


def text(driver: str, **counters: int) -> str:
    """The text of a driver, with other counters."""
    whole = (FILES / f"{driver}.txt").read_text()
    for name, value in counters.items():
        key = name.replace("_", "-")
        whole, count = re.subn(rf"(?m)^(drm-{key}:\t)[0-9]+", rf"\g<1>{value}", whole)
        assert count == 1
    return whole


def client(driver: str, **counters: int) -> DrmClient:
    found = client_in(text(driver, **counters))
    assert found
    return found


def test_clients() -> None:
    amd, intel, xe = client("amdgpu"), client("i915"), client("xe")
    assert (amd.gpu, amd.client, amd.driver) == ("0000:03:00.0", "113", "amdgpu")
    assert amd.nanoseconds == {"gfx": 4 * SECOND, "compute": 9 * SECOND, "dma": 1_000_000}
    assert set(intel.nanoseconds) == {"render", "copy", "video", "video-enhance"}
    assert intel.capacities == {"video": 2}
    assert xe.cycles["rcs"] == 28257900
    assert xe.total_cycles["rcs"] == 7655183225


@pytest.mark.parametrize(
    ("lines", "size"),
    [
        ("drm-total-vram:\t9 MiB\ndrm-memory-vram:\t512 KiB\ndrm-memory-gtt:\t1 MiB\n", 512 << 10),
        ("drm-resident-vram0:\t2 MiB\ndrm-resident-vram1:\t4096\ndrm-resident-system:\t1 MiB\n", (2 << 20) + 4096),
        ("drm-memory-vram:\t7 MiB\ndrm-resident-vram:\t6 MiB\n", 6 << 20),
        ("drm-resident-local0:\t1 GiB\ndrm-resident-local1:\t-1\ndrm-resident-local2:\t3 KiB\n", 3 << 10),
        ("", 0),
    ],
)
def test_memory_is_what_is_resident_on_the_gpu(lines: str, size: int) -> None:
    found = client_in(f"drm-pdev:\t0000:03:00.0\ndrm-client-id:\t1\ndrm-engine-gfx:\t1 ns\n{lines}")
    assert found
    assert found.memory == size


@pytest.mark.parametrize(
    "damaged",
    [
        "",
        "drm-driver:\tamdgpu\n",
        "drm-pdev:\tnowhere\ndrm-client-id:\t1\ndrm-engine-gfx:\t1 ns\n",
        "drm-pdev:\t0000:03:00.0\ndrm-client-id:\t-1\ndrm-engine-gfx:\t1 ns\n",
        "drm-pdev:\t0000:03:00.0\ndrm-client-id:\t1\ndrm-engine-gfx:\t1 years\n",
        "drm-pdev:\t0000:03:00.0\ndrm-client-id:\t1\ndrm-engine-gfx:\t" + "9" * 400 + " ns\n",
    ],
)
def test_what_counts_nothing_is_no_client(damaged: str) -> None:
    assert client_in(damaged) is None


@given(st.text(max_size=300))
def test_no_text_is_an_error(nonsense: str) -> None:
    client_in(nonsense)
    client_in(f"drm-pdev:\t0000:03:00.0\ndrm-client-id:\t1\ndrm-engine-gfx:\t1 ns\n{nonsense}")


class Clock:
    """Takes clients, a second after each other."""

    def __init__(self) -> None:
        self.time, self.now = DrmTime(), 100.0

    def take(self, *found: tuple[DrmClient, str], seconds: float = 1.0) -> dict[tuple[str, str], Usage]:
        self.now += seconds
        return {(usage.group, usage.gpu): usage for usage in self.time.take(found, self.now)}


class TestTime:
    def test_is_that_of_the_busiest_engine(self) -> None:
        clock = Clock()
        clock.take((client("amdgpu", engine_gfx=0, engine_compute=0), A))
        used = clock.take((client("amdgpu", engine_gfx=SECOND // 4, engine_compute=SECOND // 2), A))
        assert used[A, "0000:03:00.0"].seconds == pytest.approx(0.5)
        assert used[A, "0000:03:00.0"].error == 0

    def test_counts_equal_engines_as_one(self) -> None:
        clock = Clock()
        clock.take((client("i915", engine_video=0, engine_render=0), A))
        used = clock.take((client("i915", engine_video=SECOND, engine_render=0), A))
        assert used[A, "0000:00:02.0"].seconds == pytest.approx(0.5)

    def test_of_cycles_is_their_part_of_all(self) -> None:
        clock = Clock()
        clock.take((client("xe", cycles_rcs=100, total_cycles_rcs=1000), A))
        used = clock.take((client("xe", cycles_rcs=350, total_cycles_rcs=2000), A), seconds=2)
        assert used[A, "0000:04:00.0"].seconds == pytest.approx(0.5)

    def test_what_was_before_the_first_look_is_not_counted(self) -> None:
        used = Clock().take((client("amdgpu"), A))
        assert used[A, "0000:03:00.0"][3:] == (0.0, 0.0)

    def test_one_client_through_several_files_and_processes_counts_once(self) -> None:
        clock = Clock()
        first, later = client("amdgpu", engine_compute=0), client("amdgpu", engine_compute=SECOND // 2)
        clock.take((first, A), (first, A), (first, A))
        used = clock.take((later, A), (later, A), (later, A))
        assert used[A, "0000:03:00.0"][3:] == pytest.approx((0.5, 0.0))

    def test_a_client_of_two_groups_is_one_groups_with_an_error(self) -> None:
        clock = Clock()
        clock.take((client("amdgpu", engine_compute=0), A))
        later = client("amdgpu", engine_compute=SECOND // 2)
        used = clock.take((later, B), (later, A))
        assert set(used) == {(A, "0000:03:00.0")}
        assert used[A, "0000:03:00.0"][3:] == pytest.approx((0.5, 0.5))

    def test_the_same_number_on_another_gpu_is_another_client(self) -> None:
        clock = Clock()
        clock.take((client("amdgpu", engine_compute=0), A), (client("i915", client_id=113, engine_render=0), B))
        used = clock.take(
            (client("amdgpu", engine_compute=SECOND // 2), A),
            (client("i915", client_id=113, engine_render=SECOND // 4), B),
        )
        assert used[A, "0000:03:00.0"].seconds == pytest.approx(0.5)
        assert used[B, "0000:00:02.0"].seconds == pytest.approx(0.25)

    def test_a_client_that_is_gone_may_have_used_all_since(self) -> None:
        clock = Clock()
        clock.take((client("amdgpu"), A))
        used = clock.take(seconds=3)
        assert used[A, "0000:03:00.0"][3:] == pytest.approx((0.0, 3.0))
        assert clock.take() == {}

    def test_a_new_client_may_have_used_what_it_counts(self) -> None:
        clock = Clock()
        clock.take()
        used = clock.take((client("amdgpu", engine_gfx=SECOND // 10, engine_compute=0), A))
        assert used[A, "0000:03:00.0"][3:] == pytest.approx((0.0, 0.1))

    def test_a_counter_that_goes_back_counts_nothing_and_not_twice(self) -> None:
        clock = Clock()
        clock.take((client("amdgpu", engine_compute=SECOND), A))
        assert clock.take((client("amdgpu", engine_compute=SECOND // 2), A))[A, "0000:03:00.0"].seconds == 0
        used = clock.take((client("amdgpu", engine_compute=SECOND + SECOND // 4), A))
        assert used[A, "0000:03:00.0"].seconds == pytest.approx(0.25)

    @given(st.lists(st.tuples(st.integers(0, 1 << 64), st.floats(0.01, 5.0)), min_size=1, max_size=20))
    def test_no_counter_makes_more_time_than_has_passed(self, steps: list[tuple[int, float]]) -> None:
        clock = Clock()
        for count, seconds in steps:
            used = clock.take((client("amdgpu", engine_compute=count), A), seconds=seconds)
            assert 0 <= used[A, "0000:03:00.0"].seconds <= seconds + 1e-9
