"""The lab's limit follows progress: a slow run goes on, and one in which no test ends is ended."""

from __future__ import annotations

import subprocess
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.lab.outside import machine, progress
from tests.unit.conftest import running

LIMIT = 2.0


def machine_like(script: str, results: Path) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """Something that behaves like a machine: it writes to the results, or does not."""
    (results / "console.log").touch()
    return running(["bash", "-c", script], cwd=results)


def test_a_run_whose_tests_end_is_not_ended_however_slow_it_is(tmp_path: Path) -> None:
    slow = "for i in 1 2 3 4 5 6; do sleep 0.5; echo passed a::$i >>ended.txt; done; echo 0 >status; sleep 0.1"
    with machine_like(slow, tmp_path) as process:
        ended = machine.wait(process, tmp_path, LIMIT, [])
        assert ended != machine.NO_PROGRESS
    assert len((tmp_path / "ended.txt").read_text().splitlines()) == 6


def test_a_run_in_which_no_test_ends_is_ended_with_the_name_of_the_test(tmp_path: Path) -> None:
    hanging = "echo passed a::1 >ended.txt; printf a::2 >running.txt; exec sleep 60"
    with machine_like(hanging, tmp_path) as process:
        assert machine.wait(process, tmp_path, LIMIT, []) == machine.NO_PROGRESS
        assert process.poll() is None
    assert progress.running(tmp_path) == " while a::2 ran"
    assert progress.running(tmp_path / "none") == ""


def test_a_machine_that_only_reports_lockups_has_stalled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its processors trap for ever: Linux goes on to say so, and nothing else runs."""
    monkeypatch.setattr(machine, "DEAD_SECONDS", 0.3)
    trapped = (
        "echo alive >alive; while sleep 0.1; do echo 'watchdog: BUG: soft lockup - CPU#0 stuck' >>console.log; done"
    )
    with machine_like(trapped, tmp_path) as process:
        assert machine.wait(process, tmp_path, 20, []) == machine.STALLED


def test_one_lockup_of_a_machine_that_goes_on_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "DEAD_SECONDS", 3.0)  # a busy machine may start no program for a while
    busy = f"echo '{machine.LOCKUP.decode()}' >>console.log; while sleep 0.05; do echo alive >alive; done"
    with machine_like(busy, tmp_path) as process:
        assert machine.wait(process, tmp_path, 4.0, []) == machine.NO_PROGRESS
