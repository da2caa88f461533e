"""How long Tab takes: completion of devices, claims and owners on a host of 256 functions with 1,000 live claims.

    python -m bench.completion [--runs N] [--json FILE] [--vfioctl FILE]

Exits with 1 when a limit is not kept. bench/README.md says how to read the table.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import ledger, measure, stage
from bench.figures import keep, medians, show, status

FUNCTIONS, CLAIMS, ENTRIES = 256, 1000, 1000
LIMIT_MS = 150.0
"""A person takes an answer within this time for immediate."""
LINES = {
    "devices": "vfioctl bind 0000",
    "claims": "vfioctl claim show ",
    "owners": "vfioctl claim list --owner vm/",
    "vGPU types": "vfioctl vgpu create ",
    "commands": "vfioctl ",
}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.completion")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--vfioctl", default=shutil.which("vfioctl", path=str(Path(sys.executable).parent)))
    options = parser.parse_args(arguments)
    stage.enter("bench.completion", arguments)
    samples: dict[str, list[float]] = {}
    with stage.host(FUNCTIONS) as planned, TemporaryDirectory() as folder:
        file = Path(folder, "ledger.db")
        ledger.write(file, entries=ENTRIES, marked=planned[-1].address, claims=CLAIMS)
        os.environ.update(LC_ALL="C.UTF-8", VFIOCTL_LEDGER=str(file), _VFIOCTL_COMPLETE="complete_zsh")
        for name, line in LINES.items():
            os.environ["_TYPER_COMPLETE_ARGS"] = line
            if not measure.output([options.vfioctl]).strip():
                sys.exit(f"nothing completes {line!r}")
            samples[name] = [measure.seconds([options.vfioctl]) * 1000 for _ in range(options.runs)]
    figures = medians({f"completion of {name}": taken for name, taken in samples.items()}, LIMIT_MS)
    show(figures)
    keep(options.json, figures, samples, runs=options.runs)
    return status(figures)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
