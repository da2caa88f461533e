"""Commands for one device on a host with 256 functions, 2,000 processes and a ledger in use; medians, ratios.

Those that look at processes are compared with an inventory of the host and `fuser`, which together tell less.

    python -m bench.device [--runs N] [--processes 2000] [--files 50000] [--json FILE] [--vfioctl FILE]

Exits with 1 when a limit is not kept. bench/README.md says how to read the table.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import ledger, measure, stage
from bench.crowd import crowd
from bench.figures import Figure, keep, show, status
from bench.measure import Command

FUNCTIONS = 256
ENTRIES = 1000
NODE = "/dev/full"
HOLDERS = 20
INVENTORY = "inventory"
FUSER = "fuser"
COMMANDS = {
    "show {} --json": (INVENTORY,),
    "claim create --device {} --owner vm/bench --no-bind --dry-run --json": (INVENTORY, FUSER),
    "holders {} --json": (INVENTORY, FUSER),
    "bind {} --force-holders --dry-run --json": (INVENTORY, FUSER),
    "unbind {} --dry-run --json": (INVENTORY, FUSER),
}
"""Each command, and what it is compared with."""
LIMIT = 1.2


@dataclass(frozen=True)
class Options:
    vfioctl: str
    runs: int
    processes: int
    files: int
    json: Path | None


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    stage.enter("bench.device", arguments)
    os.environ.update(LC_ALL="C.UTF-8")
    with (
        TemporaryDirectory(prefix="vfioctl-bench-") as folder,
        stage.host(FUNCTIONS) as planned,
        crowd(options.processes, options.files, NODE, HOLDERS),
    ):
        used = Path(folder, "used.db")
        ledger.write(used, entries=ENTRIES, marked=planned[-1].address)
        gpu = next(function.address for function in planned if function.part.class_code >> 16 == 0x03)
        return _compare(options, gpu, used)


def _options(arguments: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(prog="bench.device")
    parser.add_argument("--vfioctl", default=str(Path(sys.prefix, "bin/vfioctl")))
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--processes", type=int, default=2000)
    parser.add_argument("--files", type=int, default=50_000)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    missing = [tool for tool in (given.vfioctl, FUSER, "unshare") if not shutil.which(tool)]
    if missing:
        parser.error(f"not found: {', '.join(missing)} (Debian package: psmisc)")
    return Options(given.vfioctl, given.runs, given.processes, given.files, given.json)


def _compare(options: Options, gpu: str, used: Path) -> int:
    ours = {command: command.replace("{}", gpu).split() for command in (f"{INVENTORY} --all --json", *COMMANDS)}
    commands: dict[str, Command] = {
        command: (options.vfioctl, *words, "--ledger", str(used)) for command, words in ours.items()
    }
    commands[INVENTORY] = commands.pop(f"{INVENTORY} --all --json")
    commands[FUSER] = (FUSER, NODE)
    for command in commands.values():
        measure.output(command)  # each must end with 0
    samples = measure.alternating(commands, options.runs)
    medians = measure.medians(samples)
    figures = [
        Figure(_title(command, peers), medians[command], sum(medians[peer] for peer in peers), "s", LIMIT)
        for command, peers in COMMANDS.items()
    ]
    show(figures)
    keep(options.json, figures, samples, runs=options.runs)
    return status(figures)


def _title(command: str, peers: Sequence[str]) -> str:
    return f"{command.partition(' {}')[0].removesuffix(' --device')} / {' + '.join(peers)}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
