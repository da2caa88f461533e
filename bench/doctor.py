"""How long `vfioctl doctor` takes on 10,000 functions, against `vfioctl inventory` in the same run.

    python -m bench.doctor [--runs N] [--json FILE] [--vfioctl FILE]

Exits with 1 when a limit is not kept. bench/README.md says how to read the table.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import ledger, measure, stage
from bench.figures import Figure, keep, show, status

FUNCTIONS, CLAIMS, ENTRIES = 10_000, 100, 1000
LONGEST, MOST = 1.0, 1.5


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.doctor")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--vfioctl", default=shutil.which("vfioctl", path=str(Path(sys.executable).parent)))
    options = parser.parse_args(arguments)
    stage.enter("bench.doctor", arguments)
    samples: dict[str, list[float]] = {"doctor": [], "inventory": []}
    with stage.host(FUNCTIONS) as planned, TemporaryDirectory() as folder:
        file = Path(folder, "ledger.db")
        ledger.write(file, entries=ENTRIES, marked=planned[-1].address, claims=CLAIMS)
        os.environ.update(LC_ALL="C.UTF-8", VFIOCTL_LEDGER=str(file))
        for _ in range(options.runs):
            for command, taken in samples.items():
                # the exit code says whether there are problems
                taken.append(measure.seconds(["/bin/sh", "-c", f"{shlex.quote(options.vfioctl)} {command} || :"]))
    doctor, inventory = (statistics.median(samples[name]) for name in ("doctor", "inventory"))
    figures = [
        Figure(f"{FUNCTIONS} functions: doctor / {LONGEST:g} s", doctor, LONGEST, "s", 1.0),
        Figure(f"{FUNCTIONS} functions: doctor / inventory", doctor, inventory, "s", MOST),
    ]
    show(figures)
    keep(options.json, figures, samples, runs=options.runs)
    return status(figures)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
