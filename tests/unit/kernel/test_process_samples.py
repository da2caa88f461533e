"""NVML's samples of processes: the program that asks for them, with pynvml and the stand-in for NVIDIA's library."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from vfioctl.kernel import program_feed
from vfioctl.kernel.feeds import Lost
from vfioctl.kernel.gpu_sharing import Samples
from vfioctl.kernel.live import process_samples
from vfioctl.kernel.live.process_samples import SampledGpus
from vfioctl.kernel.protocol import NOT_LISTED

FIRST, SECOND, ABSENT = "0000:0a:00.0", "0000:0b:00.0", "0000:0c:00.0"
GPUS = """\
00000000:0A:00.0|NVIDIA H100|GPU-aaaa|85899345920|0|0|-|0
00000000:0B:00.0|NVIDIA H100|GPU-bbbb|85899345920|0|0|-|{code}
"""
PERIOD, SECONDS = 1 / 6, 30.0


@pytest.fixture(autouse=True)
def state(nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    state = tmp_path / "gpus"
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml_library))
    monkeypatch.setenv("NVML_STANDIN_STATE", str(state))
    use(state)
    return state


def use(state: Path, *processes: str, code: int = 0) -> None:
    state.write_text(GPUS.format(code=code) + "".join(f"process|00000000:{process}\n" for process in processes))


@contextmanager
def sampled(*gpus: str) -> Iterator[SampledGpus]:
    feed = SampledGpus(gpus, PERIOD)
    try:
        yield feed
    finally:
        feed.close()


def some(feed: SampledGpus, count: int) -> list[Samples]:
    got: list[Samples] = []
    until = time.monotonic() + SECONDS
    while len(got) < count and time.monotonic() < until:
        got += used(feed)
        time.sleep(0.02)
    return got


def used(feed: SampledGpus) -> list[Samples]:
    return [samples for samples in feed.read() if samples.memory is None]


def test_each_process_has_its_percentage_and_the_time(state: Path) -> None:
    use(state, "0A:00.0|101|40", "0A:00.0|102|60", "0B:00.0|103|7")
    begun = time.time()
    with sampled(FIRST, SECOND) as feed:
        got = some(feed, 4)
    by_gpu = {samples.gpu: samples.samples for samples in got}
    assert {(pid, percent) for pid, _, percent in by_gpu[FIRST]} == {(101, 40), (102, 60)}
    assert [(pid, percent) for pid, _, percent in by_gpu[SECOND]] == [(103, 7)]
    assert all(begun < at / 1e6 < time.time() for samples in got for _, at, _ in samples.samples)


def test_samples_come_six_times_a_second(state: Path) -> None:
    use(state, "0A:00.0|101|40")
    with sampled(FIRST) as feed:
        times = [at / 1e6 for samples in some(feed, 5) for _, at, _ in samples.samples]
    assert (times[-1] - times[0]) / (len(times) - 1) >= PERIOD * 0.9


def test_an_idle_process_has_used_nothing_and_the_program_goes_on(state: Path) -> None:
    use(state, "0A:00.0|101|0")
    with sampled(FIRST, SECOND) as feed:
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            assert {percent for found in used(feed) for _, _, percent in found.samples} <= {0}
            time.sleep(0.05)


def test_a_gpu_that_fails_costs_itself(state: Path) -> None:
    use(state, "0A:00.0|101|40", code=15)
    with sampled(SECOND, ABSENT, FIRST) as feed:
        got = some(feed, 4)
    problems = {samples.gpu: samples.problem for samples in got if samples.problem}
    assert problems[ABSENT] == NOT_LISTED
    assert problems[SECOND].startswith("the GPU is lost")
    assert any(samples.gpu == FIRST and samples.samples for samples in got)


def test_the_memory_of_each_process_is_told_once(state: Path) -> None:
    use(state, f"0A:00.0|101|40|{3 << 30}", f"0A:00.0|102|0|{1 << 20}", "0A:00.0|103|0")
    with sampled(FIRST, SECOND) as feed:
        got, until = list[Samples](), time.monotonic() + SECONDS
        while sum(samples.memory is not None for samples in got) < 2 and time.monotonic() < until:
            got += feed.read()
            time.sleep(0.02)
    told = {samples.gpu: samples.memory for samples in got if samples.memory is not None}
    assert told == {FIRST: [(101, 3 << 30), (102, 1 << 20), (103, 0)], SECOND: []}


def test_a_driver_that_tells_no_memory_is_sampled_all_the_same(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVML_STANDIN_FAULTS", "nvmlDeviceGetComputeRunningProcesses_v3=3")
    use(state, "0A:00.0|101|40")
    with sampled(FIRST) as feed:
        assert some(feed, 1)[0].samples[0][2] == 40


def test_many_processes_fit_into_a_line(state: Path) -> None:
    use(state, *(f"0A:00.0|{pid}|1" for pid in range(1000, 1250)))
    with sampled(FIRST) as feed:
        got = some(feed, 1)
    assert len(got[0].samples) == 250


@pytest.mark.parametrize("function", ["nvmlInitWithFlags=9", "nvmlDeviceGetProcessUtilization=3"])
def test_a_failure_is_told_and_ends_it(monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    monkeypatch.setenv("NVML_STANDIN_FAULTS", function)
    with sampled(FIRST) as feed, pytest.raises(Lost) as lost:
        some(feed, 2)
    assert lost.value.ended


def test_a_library_that_hangs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVML_STANDIN_FAULTS", "nvmlInitWithFlags=hang")
    monkeypatch.setattr(program_feed, "_START_SECONDS", 1.0)
    with sampled(FIRST) as feed, pytest.raises(Lost, match="no answer within 1 s"):
        some(feed, 1)


def test_a_library_that_hangs_later_is_told_too(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(state, "0A:00.0|100|40")
    with sampled(FIRST) as feed:
        assert some(feed, 1)
        os.kill(feed._feed._process.pid, signal.SIGSTOP)
        monkeypatch.setattr(process_samples, "_SILENT", 0.3)
        with pytest.raises(Lost, match="no answer for"):
            some(feed, 1000)


def test_no_descriptor_is_left_open() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with sampled(FIRST) as feed:
        feed.read()
    assert len(os.listdir("/proc/self/fd")) == before
