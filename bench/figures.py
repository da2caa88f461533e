"""What a benchmark says in the end: a table of figures with their limits, and the same as a file."""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Figure:
    """One line of the table: ours against a measure, and the limit of their ratio."""

    name: str
    ours: float
    theirs: float
    unit: str
    limit: float

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs

    @property
    def kept(self) -> bool:
        return self.ratio <= self.limit

    def __str__(self) -> str:
        verdict = "kept" if self.kept else "MISSED"
        values = f"{self.ours:9.3f} {self.theirs:9.3f} {self.unit:<4} {self.ratio:7.2f} {self.limit:7.2f}"
        return f"{self.name:<44} {values}  {verdict}"


def medians(samples: Mapping[str, Sequence[float]], limit_ms: float) -> list[Figure]:
    """The median of each, in milliseconds, against one limit."""
    return [
        Figure(f"{name}: / {limit_ms:g} ms", statistics.median(taken), limit_ms, "ms", 1.0)
        for name, taken in samples.items()
    ]


def show(figures: Sequence[Figure]) -> None:
    """The table, after the interpreters of vfioctl and of the peers that are written in Python."""
    print(interpreters())
    print(f"{'':<44} {'vfioctl':>9} {'measure':>9} {'':<4} {'ratio':>7} {'limit':>7}")
    print(*figures, sep="\n")


def interpreters() -> str:
    """Which Python runs vfioctl, and which its peers."""
    ours, theirs = (os.path.realpath(path) for path in (sys.executable, shutil.which("python3") or ""))
    peers = "and its peers in Python" if ours == theirs else f"and {theirs} its peers: their ratios compare both"
    return f"Python {platform.python_version()} ({ours}) runs vfioctl {peers}"


def keep(file: Path | None, figures: Sequence[Figure], samples: object, *, runs: int) -> None:
    """The figures and all samples, with the machine that they were taken on, where a file was asked for."""
    if file is None:
        return
    machine = {"cpus": os.cpu_count(), "kernel": platform.release(), "python": interpreters()}
    rows = [{**asdict(figure), "ratio": figure.ratio, "kept": figure.kept} for figure in figures]
    document = {"machine": machine, "runs": runs, "figures": rows, "samples": samples}
    file.write_text(json.dumps(document, indent=1) + "\n")


def status(figures: Sequence[Figure]) -> int:
    """The exit status: 1 when a limit is not kept."""
    return 0 if all(figure.kept for figure in figures) else 1
