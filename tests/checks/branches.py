"""Whether enough branches are covered: `python -m tests.checks.branches REPORT`, on the JSON report of coverage.

coverage's own gate counts lines and branches together, where many lines make up for few branches. This one counts
branches only, and has the same number: `fail_under` in pyproject.toml. Prints; writes nothing.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
WORST = 10


def needed() -> float:
    """Per cent."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return float(project["tool"]["coverage"]["report"]["fail_under"])


def percent(summary: Mapping[str, int]) -> float:
    """Of the branches of a file, or of all; 100 where there are none."""
    return 100.0 * summary["covered_branches"] / summary["num_branches"] if summary["num_branches"] else 100.0


def worst(report: Mapping[str, Any]) -> list[str]:
    """The files with the most branches that no test takes, for people."""
    missing = [(each["summary"]["missing_branches"], name) for name, each in report["files"].items()]
    return [f"{count:5} not taken in {name}" for count, name in sorted(missing, reverse=True)[:WORST] if count]


def main(arguments: Sequence[str]) -> int:
    report = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    found, least = percent(report["totals"]), needed()
    print(f"branches: {found:.2f} % of {report['totals']['num_branches']} are covered, {least:g} % must be")
    if found >= least:
        return 0
    print(*worst(report), sep="\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
