"""`vfioctl inventory` against its peers, on the same synthetic hosts; whole processes, medians, ratios.

    python -m bench.inventory [--runs N] [--sizes 256,1000,3000,10000] [--json FILE] [--vfioctl FILE]

Exits with 1 when a limit is not kept. bench/README.md says how to read the table.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import ledger, measure, stage
from bench.figures import Figure, keep, show, status
from bench.measure import Command

LSPCI = ("lspci", "-Dnnk")
DRIVERCTL = ("driverctl", "list-devices")
DPDK = ("dpdk-devbind.py", "--status")
SMALL = 256
"""The size at which all peers are asked; driverctl would take minutes for 10,000 functions."""
LARGE = 10_000
ENTRIES = 1000
"""Changes in the ledger of a host in use."""


@dataclass(frozen=True)
class Options:
    vfioctl: str
    runs: int
    sizes: tuple[int, ...]
    json: Path | None

    @property
    def inventory(self) -> Command:
        return (self.vfioctl, "inventory", "--json", "--all")


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    stage.enter("bench.inventory", arguments)
    os.environ.update(LC_ALL="C.UTF-8")
    samples: dict[str, dict[str, list[float]]] = {}
    figures = [_start(options, samples)]
    for size in options.sizes:
        with stage.host(size) as planned:
            _check_all_agree(options, [function.address for function in planned])
            figures += _at(size, options, samples)
            if size <= SMALL:
                figures.append(_in_use(size, options, samples, marked=planned[-1].address))
            if size >= LARGE:
                figures.append(_without_modules(size, options, samples))
    figures += _growth(samples)
    _report(figures, samples, options)
    return status(figures)


def _options(arguments: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(prog="bench.inventory")
    parser.add_argument("--vfioctl", default=str(Path(sys.prefix, "bin/vfioctl")))
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--sizes", default="256,1000,3000,10000")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    missing = [tool for tool in (given.vfioctl, LSPCI[0], DRIVERCTL[0], DPDK[0], "unshare") if not shutil.which(tool)]
    if missing:
        parser.error(f"not found: {', '.join(missing)} (Debian packages: pciutils driverctl dpdk)")
    return Options(given.vfioctl, given.runs, tuple(int(size) for size in given.sizes.split(",")), given.json)


def _start(options: Options, samples: dict[str, dict[str, list[float]]]) -> Figure:
    """100 ms where the interpreter alone takes 12."""
    commands = {"vfioctl --version": (options.vfioctl, "--version"), "python -c pass": (sys.executable, "-c", "pass")}
    samples["start"] = measure.alternating(commands, 3 * options.runs)
    ours, python = measure.medians(samples["start"]).values()
    return Figure("vfioctl --version / python -c pass", ours, python, "s", 100 / 12)


def _check_all_agree(options: Options, addresses: Sequence[str]) -> None:
    """That the programs see the host that was written, before any of them is timed."""
    ours = [function["address"] for function in json.loads(measure.output(options.inventory))["functions"]]
    theirs = [line.split()[0] for line in measure.output(LSPCI).splitlines() if line[:1] not in {"", "\t"}]
    if not sorted(ours) == sorted(theirs) == sorted(addresses):
        sys.exit(f"{len(addresses)} functions were written, vfioctl shows {len(ours)} and lspci {len(theirs)}")


def _at(size: int, options: Options, samples: dict[str, dict[str, list[float]]]) -> list[Figure]:
    commands: dict[str, Command] = {"vfioctl": options.inventory, "lspci": LSPCI}
    if size <= SMALL:
        commands |= {"dpdk-devbind": DPDK, "driverctl": DRIVERCTL}
    samples[str(size)] = measure.alternating(commands, options.runs)
    medians = measure.medians(samples[str(size)])
    limits = {"dpdk-devbind": 0.4, "driverctl": 0.2} if size <= SMALL else {"lspci": 1.3} if size >= LARGE else {}
    figures = [
        Figure(f"{size} functions / {peer}", medians["vfioctl"], medians[peer], "s", limit)
        for peer, limit in limits.items()
    ]
    if size >= LARGE:
        alone, together = measure.peak_mib(options.inventory)
        samples[str(size)]["peak MiB, alone and with children"] = [alone, together]
        figures.append(Figure(f"{size} functions, memory / 200 MB", together, 200e6 / 2**20, "MiB", 1.0))
    return figures


def _in_use(size: int, options: Options, samples: dict[str, dict[str, list[float]]], *, marked: str) -> Figure:
    with TemporaryDirectory(prefix="vfioctl-bench-") as folder:
        used, fresh = Path(folder, "used.db"), Path(folder, "fresh.db")
        ledger.write(used, entries=ENTRIES, marked=marked)
        commands: dict[str, Command] = {
            "in use": (*options.inventory, "--ledger", str(used)),
            "without": (*options.inventory, "--ledger", str(fresh)),
        }
        times = samples[f"{size} in use"] = measure.alternating(commands, 3 * options.runs)
    ours, without = measure.medians(times).values()
    return Figure(f"{size} functions, a ledger with {ENTRIES} entries / without", ours, without, "s", 1.15)


def _without_modules(size: int, options: Options, samples: dict[str, dict[str, list[float]]]) -> Figure:
    with stage.no_modules():
        commands: dict[str, Command] = {"vfioctl": options.inventory, "lspci": LSPCI}
        times = samples[f"{size} without modules"] = measure.alternating(commands, options.runs)
    ours, lspci = measure.medians(times).values()
    return Figure(f"{size} functions, no module index / lspci", ours, lspci, "s", 1.3)


def _growth(samples: dict[str, dict[str, list[float]]]) -> list[Figure]:
    """The slope of log time over log size from 1,000 functions on: 1 is linear."""
    sizes = [int(name) for name in samples if name.isdigit() and int(name) >= 1000]
    if len(sizes) < 2:
        return []
    times = [statistics.median(samples[str(size)]["vfioctl"]) for size in sizes]
    slope = statistics.linear_regression([math.log(size) for size in sizes], [math.log(time) for time in times]).slope
    return [Figure(f"growth from {sizes[0]} to {sizes[-1]} / linear", slope, 1.0, "", 1.0)]


def _report(figures: list[Figure], samples: dict[str, dict[str, list[float]]], options: Options) -> None:
    show(figures)
    print(f"\nmedians of {options.runs} runs, in seconds:")
    for size in options.sizes:
        times = {name: times for name, times in samples[str(size)].items() if "MiB" not in name}
        medians = "  ".join(f"{name} {value:.3f}" for name, value in measure.medians(times).items())
        print(f"{size:>7} functions: {medians}")
    keep(options.json, figures, samples, runs=options.runs)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
