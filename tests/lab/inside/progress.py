"""Writes down which test runs, and how each test ended, at once: of a machine that stalls, nothing else tells.

A plugin of pytest. `../boot.py` reads the lines, each an outcome and a node id, and runs only the rest again.
"""

import os
from pathlib import Path

import pytest

RESULTS = Path(os.environ["VFIOCTL_LAB_RESULTS"])
ENDED = RESULTS / "ended.txt"


def pytest_runtest_logstart(nodeid: str) -> None:
    """Of a test that never ends, this tells which one it is."""
    (RESULTS / "running.txt").write_text(nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A line for each test, and one more for each of its phases that failed."""
    if report.when == "teardown" or report.failed:
        with ENDED.open("a") as ended:
            ended.write(f"{report.outcome} {report.nodeid}\n")
    if report.failed:
        with (RESULTS / "failures.txt").open("a") as failures:
            failures.write(f"{report.nodeid}\n{report.longreprtext}\n")
