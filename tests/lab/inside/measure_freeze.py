"""Measures freezing and thawing 50 processes, against writing `cgroup.freeze` by hand and waiting for the kernel.

Runs in the lab, where root may make control groups, as a part of `make bench`. Judges nothing.
"""

from pathlib import Path

from bench.figures import show
from bench.sharing import freezing, of_freezing

RUNS = 200


def test_freeze_and_thaw(tmp_path: Path) -> None:
    samples = freezing(tmp_path, RUNS)
    print()
    show([*of_freezing(samples)])
    assert all(len(each) == RUNS for each in samples.values())
