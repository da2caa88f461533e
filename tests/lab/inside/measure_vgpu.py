"""Measures creating and removing one mediated device inside the process, against the whole `mdevctl start` and `stop`.

Runs in the lab, where starting Python would hide the work, as a part of `make bench`. Judges nothing.

vfioctl works in a process of its own that has nothing else in it, as the command has: its fork server is forked from
it, and to fork a process as large as pytest costs more than all the rest. What it starts once, at its first change, is
not measured: its imports, and its workers, which the command starts before them.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lab.inside import mdev
from tests.lab.inside.conftest import Load

ROUNDS = 15
WORK = """
import gc, json, os, sys, time
from pathlib import Path
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
gc.disable()
from vfioctl.host import Host
from vfioctl.vgpu.model.report import vgpus_in

host, kind = Host.live(Path(sys.argv[1])), sys.argv[2]
for line in sys.stdin:
    began = time.perf_counter()
    (vgpu,) = vgpus_in(host.apply(host.vgpu.plan_create(kind)).report)
    made = time.perf_counter()
    assert Path("/sys/bus/mdev/devices", vgpu.id).exists()
    removing = time.perf_counter()
    host.apply(host.vgpu.plan_remove([vgpu.id]))
    removed = time.perf_counter()
    assert not Path("/sys/bus/mdev/devices", vgpu.id).exists()
    print(json.dumps([made - began, removed - removing]), flush=True)
"""


@pytest.mark.parametrize(("parent", "kind"), [("mtty", "mtty-2"), ("mbochs", "mbochs-small")])
def test_one_instance_against_mdevctl(parent: str, kind: str, load: Load, tmp_path: Path, results: Path) -> None:
    load(parent)
    ours: dict[str, list[float]] = {"create": [], "remove": []}
    theirs: dict[str, list[float]] = {"create": [], "remove": []}
    with _worker(tmp_path / "ledger.db", kind) as worker:
        _of_vfioctl(worker)  # the first imports
        for _ in range(ROUNDS):
            for times, (made, removed) in ((theirs, _of_mdevctl(parent, kind)), (ours, _of_vfioctl(worker))):
                times["create"].append(made)
                times["remove"].append(removed)
    figures = {
        verb: {
            "vfioctl": statistics.median(ours[verb]),
            "mdevctl": statistics.median(theirs[verb]),
            "ratio": statistics.median(a / b for a, b in zip(ours[verb], theirs[verb], strict=True)),
        }
        for verb in ours
    }
    text = json.dumps({"rounds": ROUNDS, "seconds": figures}, indent=2)
    (results / f"vgpu-cost-{parent}.json").write_text(f"{text}\n")
    for verb, figure in figures.items():
        print(f"\n{verb} on {parent}: " + ", ".join(f"{name} {value:.3f}" for name, value in figure.items()))


@contextmanager
def _worker(ledger: Path, kind: str) -> "Iterator[subprocess.Popen[str]]":
    command = [sys.executable, "-c", WORK, str(ledger), kind]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        assert process.stdin
        process.stdin.close()


def _of_vfioctl(worker: "subprocess.Popen[str]") -> tuple[float, float]:
    """Each from the plan to the last word in the journal."""
    assert worker.stdin
    assert worker.stdout
    worker.stdin.write("\n")
    worker.stdin.flush()
    made, removed = json.loads(worker.stdout.readline())
    return made, removed


def _of_mdevctl(parent: str, kind: str) -> tuple[float, float]:
    name = mdev.new_uuid()
    began = time.perf_counter()
    _run("start", "--uuid", name, "--parent", parent, "--type", kind)
    made = time.perf_counter()
    assert mdev.instances() == {name}
    removing = time.perf_counter()
    _run("stop", "--uuid", name)
    removed = time.perf_counter()
    assert mdev.instances() == set()
    return made - began, removed - removing


def _run(*arguments: str) -> None:
    subprocess.run(["mdevctl", *arguments], check=True, capture_output=True, timeout=60)
