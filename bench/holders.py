"""The search for who holds a device against `fuser` on the same node, in the same crowd of processes; medians, ratios.

    python -m bench.holders [--runs N] [--processes 2000] [--files 50000] [--json FILE] [--vfioctl FILE]

Exits with 1 when a limit is not kept. bench/README.md says how to read the table.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import measure, stage
from bench.crowd import crowd
from bench.figures import Figure, keep, show, status
from tests.probing import read_inventory
from vfioctl.inventory.model.functions import Function, Inventory
from vfioctl.inventory.model.holders import HolderKind, Holders
from vfioctl.inventory.probe.holders import read_holders
from vfioctl.inventory.probe.processes import Processes
from vfioctl.kernel.live.host import Live

NODE = "/dev/full"
"""A device file that is everywhere, does nothing when it is opened, and is used by nobody."""
NUMBER = "1:7"
HOLDERS = 20
FUNCTIONS = 64
LONGEST = 0.5
"""Seconds that a search may take."""


@dataclass(frozen=True)
class Options:
    vfioctl: str
    runs: int
    processes: int
    files: int
    json: Path | None


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    stage.enter("bench.holders", arguments)
    os.environ.update(LC_ALL="C.UTF-8")
    with stage.host(FUNCTIONS) as planned, crowd(options.processes, options.files, NODE, HOLDERS) as holding:
        gpu = next(function.address for function in planned if function.part.class_code >> 16 == 0x03)
        _give_node(gpu)
        return _compare(options, gpu, holding)


def _options(arguments: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(prog="bench.holders")
    parser.add_argument("--vfioctl", default=str(Path(sys.prefix, "bin/vfioctl")))
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--processes", type=int, default=2000)
    parser.add_argument("--files", type=int, default=50_000)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    missing = [tool for tool in (given.vfioctl, "fuser", "unshare") if not shutil.which(tool)]
    if missing:
        parser.error(f"not found: {', '.join(missing)} (Debian package: psmisc)")
    return Options(given.vfioctl, given.runs, given.processes, given.files, given.json)


def _give_node(address: str) -> None:
    """The node belongs to that function, as far as /sys tells."""
    home = Path("/sys/bus/pci/devices", address, "drm", "card0")
    home.mkdir(parents=True)
    (home / "dev").write_text(f"{NUMBER}\n")
    (home / "subsystem").symlink_to("../../../../../../class/drm")


def _compare(options: Options, gpu: str, holding: frozenset[int]) -> int:
    inventory = read_inventory(Live())
    function = next(each for each in inventory.functions if each.address == gpu)
    ours, theirs = [options.vfioctl, "holders", gpu, "--json"], ["fuser", NODE]
    _check_all_agree(holding, ours, theirs, _look(function, inventory))
    samples: dict[str, list[float]] = {"search": [], "vfioctl holders": [], "fuser": []}
    for _ in range(options.runs):
        samples["fuser"].append(measure.seconds(theirs))
        samples["vfioctl holders"].append(measure.seconds(ours))
        began = time.perf_counter()
        _look(function, inventory)
        samples["search"].append(time.perf_counter() - began)
    return _report(options, samples)


def _look(function: Function, inventory: Inventory) -> Holders:
    kernel = Live()
    return read_holders(kernel, [function], inventory, Processes(kernel))


def _check_all_agree(holding: frozenset[int], ours: Sequence[str], theirs: Sequence[str], found: Holders) -> None:
    """That all find the very processes that have the node open, before anything is timed."""
    told = json.loads(measure.output(ours))["holders"]
    fuser = subprocess.run(theirs, check=True, capture_output=True, text=True)
    answers = {  # a process that could not be read may have it open too: fuser does not report those
        "the search": {holder.pid for holder in found.holders if holder.pid and holder.kind != HolderKind.UNREAD},
        "vfioctl": {holder["pid"] for holder in told if holder["pid"] and holder["kind"] != HolderKind.UNREAD},
        "fuser": {int(word) for word in fuser.stdout.split()},
    }
    wrong = [f"{name} finds {len(pids)}" for name, pids in answers.items() if pids != holding]
    if wrong:
        sys.exit(f"{len(holding)} processes have {NODE} open; {'; '.join(wrong)}")


def _report(options: Options, samples: dict[str, list[float]]) -> int:
    medians = measure.medians(samples)
    crowded = f"{options.processes} processes, {options.files} files"
    figures = [
        Figure(f"{crowded}: search / {LONGEST} s", medians["search"], LONGEST, "s", 1.0),
        Figure(f"{crowded}: search / fuser", medians["search"], medians["fuser"], "s", 1.0),
        Figure(f"{crowded}: process / fuser", medians["vfioctl holders"], medians["fuser"], "s", 1.0),
    ]
    show(figures)
    keep(options.json, figures, samples, runs=options.runs)
    return status(figures)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
