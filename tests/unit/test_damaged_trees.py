"""Listings and dry runs on damaged directories: each ends soon, with a documented exit code and text fit to be shown.

A failure names its seed. More seeds: VFIOCTL_FUZZ=1000 pytest tests/unit/test_damaged_trees.py
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from tests import captures
from tests.damage import damage
from tests.hosts.machines import HOSTS
from tests.unit.conftest import CONTROL, FAILURES, Run

SEEDS = int(os.environ.get("VFIOCTL_FUZZ", "32"))
SECONDS = 30
"""For one command: a read without an answer is given up after two seconds, and a damaged tree has several."""
TREES = {
    "busy": {"gpu": "04:00.0", "type": "VF", "pf": "04:00.0"},
    "l40s": {"gpu": "41:00.0", "type": "L40S-12Q", "pf": "41:00.0"},
    "laptop": {"gpu": "01:00.0", "type": "VF", "pf": "00:02.0"},
    "t4": {"gpu": "3b:00.0", "type": "T4-4C", "pf": "3b:00.0"},
    "xe": {"gpu": "03:00.0", "type": "VF", "pf": "03:00.0"},
}
"""Small hosts: one in use, and one for each interface of vGPUs."""
LINES = (
    "inventory --all",
    "inventory --tree",
    "inventory --all --json",
    "show {gpu} --json",
    "holders {gpu}",
    "vgpu types",
    "vgpu list --json",
    "bind {gpu} --with-group --allow-boot-vga --dry-run",
    "unbind {gpu} --to nouveau --dry-run --json",
    "reset {gpu} --dry-run",
    "sriov set {pf} 1 --foreign --persistent --dry-run",
    "vgpu create {type} --dry-run --json",
    "vgpu restore --dry-run",
    "recover --dry-run",
    "snapshot",
)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_damaged_tree_is_listed_or_refused(run: Run, fast_folder: Path, seed: int) -> None:
    chance = random.Random(seed)
    name = sorted(TREES)[seed % len(TREES)]
    root = captures.unpack(HOSTS / f"{name}.host", fast_folder / name)
    done = damage(root, chance, chance.choice((1, 5, 25, 100)))
    for line in chance.sample(LINES, 6):
        told = f"seed {seed}: {line}\n" + "\n".join(done)
        with at_most(SECONDS, told):
            answer = run(line.format(**TREES[name]), "--root", str(root))
        assert answer.code in {0, *FAILURES}, told
        assert not CONTROL.search(answer.out + answer.err), told
        assert "Traceback" not in answer.err, told
        assert "root:x:0" not in answer.out, told
        if "--json" in line:
            assert isinstance(json.loads(answer.out), dict), told


@contextmanager
def at_most(seconds: int, told: str) -> Iterator[None]:
    """Fail the test if the block takes longer."""

    def fail(_: int, __: FrameType | None) -> None:
        pytest.fail(f"no answer within {seconds} s, {told}")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
