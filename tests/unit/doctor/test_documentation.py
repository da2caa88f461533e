"""The guide lists every check, in the order of the table, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from vfioctl.doctor.checks.table import CHECKS

GUIDE = Path(__file__).parents[3] / "docs/how-to/find-what-stops-passthrough.md"


def test_the_guide_lists_the_checks() -> None:
    table = GUIDE.read_text(encoding="utf-8").partition("| check | what it judges |\n")[2].partition("\n\n")[0]
    listed = [name for row in table.splitlines()[1:] for name in re.findall("`([a-z-]+)`", row.split("|")[1])]
    assert listed == [check.name for check in CHECKS]
