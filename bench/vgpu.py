"""`vfioctl vgpu types` against `mdevctl types --dumpjson` on the same tree of mdev types; whole processes, medians.

    python -m bench.vgpu [--runs N] [--cards 16] [--json FILE] [--vfioctl FILE]

Each card has 32 VFs of 20 types each. Exits with 1 when a limit is not kept. bench/README.md says how to read the
table.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import measure, stage
from bench.figures import Figure, keep, show, status
from bench.vgpus import TYPES, VFS, add_vgpus

LONGEST = 1.5
"""Seconds that the whole process may take."""


@dataclass(frozen=True)
class Options:
    vfioctl: str
    runs: int
    cards: int
    json: Path | None


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    stage.enter("bench.vgpu", arguments)
    os.environ.update(LC_ALL="C.UTF-8")
    with stage.host(64):
        add_vgpus(Path("/sys"), options.cards)
        return _compare(options)


def _options(arguments: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(prog="bench.vgpu")
    parser.add_argument("--vfioctl", default=str(Path(sys.prefix, "bin/vfioctl")))
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--cards", type=int, default=16)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    missing = [tool for tool in (given.vfioctl, "mdevctl", "unshare") if not shutil.which(tool)]
    if missing:
        parser.error(f"not found: {', '.join(missing)} (Debian package: mdevctl)")
    return Options(given.vfioctl, given.runs, given.cards, given.json)


def _compare(options: Options) -> int:
    ours, theirs = [options.vfioctl, "vgpu", "types", "--json"], ["mdevctl", "types", "--dumpjson"]
    _check_both_agree(ours, theirs)
    commands = {"vfioctl": ours, "vfioctl, as text": ours[:-1], "mdevctl": theirs}
    samples = measure.alternating(commands, options.runs)
    medians = measure.medians(samples)
    folders = f"{options.cards * VFS * TYPES} types"
    figures = [
        Figure(f"{folders}: process / {LONGEST} s", medians["vfioctl"], LONGEST, "s", 1.0),
        Figure(f"{folders}: process / mdevctl", medians["vfioctl"], medians["mdevctl"], "s", 0.5),
        Figure(f"{folders}: as text / {LONGEST} s", medians["vfioctl, as text"], LONGEST, "s", 1.0),
    ]
    show(figures)
    keep(options.json, figures, samples, runs=options.runs)
    return status(figures)


def _check_both_agree(ours: Sequence[str], theirs: Sequence[str]) -> None:
    """That both see the same types on the same parents, with the same numbers, before anything is timed."""
    cards = json.loads(measure.output(ours))["cards"]
    parents = [parent for card in cards for parent in card["parents"]]
    mine = {(parent["name"], kind): number for parent in parents for kind, number in parent["offers"].items()}
    told = {
        (parent, kind): facts["available_instances"]
        for entry in json.loads(measure.output(theirs))
        for parent, types in entry.items()
        for each in types
        for kind, facts in each.items()
    }
    if mine != told:
        sys.exit(f"vfioctl shows {len(mine)} types on all parents, mdevctl {len(told)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
