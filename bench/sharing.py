"""Shared GPU time: what sampling costs, and how soon a control group is frozen and thawed. Figures and limits.

    python -m bench.sharing [--runs N] [--seconds N] [--freeze] [--json FILE]

Sampling is as the service does it by default: a program asks NVML 6 times a second, and what it writes is read and
added up twice a second. It is with a stand-in for NVML's library and 200 real processes, which sleep. With --freeze, as
root on a machine with control groups of version 2 that nobody needs, such as the lab's: it makes one with 50 processes.
Exits with 1 when a limit is not kept.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.figures import Figure, keep, show, status
from tests.conftest import memory
from vfioctl.kernel.live.control_groups import LiveControlGroups, hierarchy
from vfioctl.kernel.live.sharing import LiveSharing
from vfioctl.kernel.live.thaw_watchdog import LiveThawWatchdog
from vfioctl.sharing.measuring.gpus import MeasuredGpus
from vfioctl.sharing.measuring.meter import GpuMeter
from vfioctl.sharing.throttling.throttle import Throttle

GPU, SAMPLED, FROZEN, RATE, POLL = "0000:0a:00.0", 200, 50, 6, 0.5
SAMPLING_PERCENT, FREEZE_MS, OF_HAND = 0.5, 10.0, 2.0
_SOURCE = Path(__file__).resolve().parents[1] / "tests/standin/nvml.c"
_BY_HAND_PAUSE = 20e-6


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.sharing")
    parser.add_argument("--runs", type=int, default=500, help="freezes")
    parser.add_argument("--seconds", type=float, default=20.0, help="of sampling")
    parser.add_argument("--freeze", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    samples: dict[str, list[float]] = {}
    with memory() as folder:
        samples["sampling"] = [sampling(folder, options.seconds)]
        name = f"sampling {SAMPLED} processes, {RATE} times a second"
        figures = [Figure(f"{name}: / 0.5 %", samples["sampling"][0], SAMPLING_PERCENT, "%", 1.0)]
        if options.freeze:
            samples |= freezing(folder, options.runs)
            figures += of_freezing(samples)
    show(figures)
    keep(options.json, figures, samples, runs=options.runs)
    return status(figures)


def of_freezing(samples: dict[str, list[float]]) -> Iterator[Figure]:
    for what in ("freeze", "thaw"):
        ours, theirs = samples[what], samples[f"{what} by hand"]
        yield Figure(f"{what} of {FROZEN} processes: p99 / {FREEZE_MS:g} ms", _p99(ours), FREEZE_MS, "ms", 1.0)
        yield Figure(f"{what}: p99 / by hand", _p99(ours), _p99(theirs), "ms", OF_HAND)
        yield Figure(f"{what}: median / by hand", statistics.median(ours), statistics.median(theirs), "ms", OF_HAND)


def _p99(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


@contextmanager
def sleepers(count: int) -> Iterator[list[int]]:
    """The numbers of processes that sleep."""
    children = [subprocess.Popen(["sleep", "infinity"]) for _ in range(count)]
    try:
        yield [child.pid for child in children]
    finally:
        for child in children:
            child.kill()
        for child in children:
            child.wait()


def sampling(folder: Path, seconds: float) -> float:
    """Percent of one CPU that the meter takes, with the program that asks NVML. The library's own time does not count
    for much here: it answers from memory."""
    command = ["gcc", "-D_GNU_SOURCE", "-std=gnu11", "-O2", "-shared", "-fPIC", str(_SOURCE)]
    subprocess.run([*command, "-o", str(folder / "libnvidia-ml.so.1")], check=True)
    with sleepers(SAMPLED) as pids:
        state = folder / "gpus"
        lines = [f"process|00000000:0A:00.0|{pid}|1" for pid in pids]
        state.write_text("\n".join(["00000000:0A:00.0|NVIDIA H100|GPU-aaaa|85899345920|0|0|-|0", *lines, ""]))
        os.environ |= {"LD_LIBRARY_PATH": str(folder), "NVML_STANDIN_STATE": str(state)}
        meter = GpuMeter(LiveSharing(), ())
        try:
            meter.measure_gpus(MeasuredGpus((GPU,)))
            _sample_for(meter, 3.0)  # until the program has started and all processes are known
            children = {int(name) for name in _children()} - {*pids}
            before, begun = _processor(children), time.monotonic()
            used = _sample_for(meter, seconds)
            assert used > 0, "nothing was sampled"
            return 100 * (_processor(children) - before) / (time.monotonic() - begun)
        finally:
            meter.close()


def _sample_for(meter: GpuMeter, seconds: float) -> float:
    until, used = time.monotonic() + seconds, 0.0
    while (now := time.monotonic()) < until:
        used += sum(usage.seconds for usage in meter.read())
        time.sleep(max(0.0, now + POLL - time.monotonic()))
    return used


def _children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def _processor(children: set[int]) -> float:
    """Seconds of processor time of this process and others."""
    fields = [Path(f"/proc/{pid}/schedstat").read_text().split() for pid in children]
    return time.process_time() + sum(int(words[0]) for words in fields) / 1e9


def freezing(folder: Path, runs: int) -> dict[str, list[float]]:
    """Milliseconds of freezes and thaws, ours and by hand, one after the other."""
    place = Path(hierarchy(), f"vfioctl-bench-{os.getpid()}")
    place.mkdir()
    groups = LiveControlGroups(hierarchy())
    record = str(folder / "record")
    throttle = Throttle(groups, lambda: LiveThawWatchdog(hierarchy(), record), lambda _: "", lambda _: None)
    path, samples = f"/{place.name}", {name: list[float]() for name in ("freeze", "thaw")}
    samples |= {f"{name} by hand": [] for name in ("freeze", "thaw")}
    try:
        with sleepers(FROZEN) as pids:
            for pid in pids:
                (place / "cgroup.procs").write_text(str(pid))
            for _ in range(runs):
                samples["freeze"].append(_timed(lambda: throttle.apply({path}, lambda _: 600.0)))
                samples["thaw"].append(_timed(lambda: _thaw(throttle, groups, path)))
                samples["freeze by hand"].append(_timed(lambda: _by_hand(place, "1")))
                samples["thaw by hand"].append(_timed(lambda: _by_hand(place, "0")))
    finally:
        throttle.close()
        until = time.monotonic() + 10
        while place.exists() and time.monotonic() < until:
            try:
                place.rmdir()
            except OSError:
                time.sleep(0.05)
    return samples


def _thaw(throttle: Throttle, groups: LiveControlGroups, path: str) -> None:
    throttle.apply(set(), lambda _: 600.0)
    assert groups.await_frozen(path, 10, frozen=False)


def _by_hand(place: Path, value: str) -> None:
    (place / "cgroup.freeze").write_text(value)
    while f"frozen {value}" not in (place / "cgroup.events").read_text():
        time.sleep(_BY_HAND_PAUSE)


def _timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - begun)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
