"""Exit codes of a command that a signal ends or that is not confirmed, as a process that a shell starts."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.unit.conftest import Run, answered, running
from vfioctl.host import Host

ROOT = Path(__file__).resolve().parents[2]
SIGNALS = [(signal.SIGINT, 130, "Interrupted"), (signal.SIGTERM, 143, "Terminated"), (signal.SIGHUP, 129, "HungUp")]
GPU = "0000:01:00.0"
# The signal arrives in the process itself, at a known place: a test that sends it from outside cannot know where it is.
PROGRAM = """
import importlib, os, signal, sys
from vfioctl.app import console
place, number, *words = sys.argv[1:]
module, _, name = place.partition(":")
kind, _, method = name.partition(".")
owner = getattr(importlib.import_module(module), kind)
owner, method = (owner, method) if method else (importlib.import_module(module), kind)
genuine = getattr(owner, method)
def interrupted(*given, **more):
    os.kill(os.getpid(), int(number))
    return genuine(*given, **more)
setattr(owner, method, interrupted)
sys.argv = ["vfioctl", *words]
console()
"""
CONSOLE = "from vfioctl.app import console; console()"
READING = "vfioctl.inventory.api:InventoryApi.inventory"
WRITING = "vfioctl.kernel.simulated.host:Simulated.load"
WAITING = "time:sleep"


def signalled(place: str, number: int, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, place, str(int(number)), *words],
        cwd=ROOT,
        text=True,
        check=False,
        capture_output=True,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize(("number", "code", "kind"), SIGNALS)
class TestSignals:
    def test_in_a_listing(self, number: int, code: int, kind: str) -> None:
        done = signalled(READING, number, "inventory", "--host", "laptop")
        assert (done.returncode, done.stdout, done.stderr) == (code, "", "vfioctl: interrupted\n")
        error = json.loads(signalled(READING, number, "inventory", "--host", "laptop", "--json").stdout)["error"]
        assert (error["exit_code"], error["kind"]) == (code, kind)

    def test_in_a_dry_run(self, number: int, code: int, kind: str) -> None:
        del kind
        done = signalled(READING, number, "bind", GPU, "--dry-run", "--simulate", "laptop")
        assert (done.returncode, done.stdout, done.stderr) == (code, "", "vfioctl: interrupted\n")

    def test_in_a_change_which_is_put_back(self, number: int, code: int, kind: str) -> None:
        done = signalled(WRITING, number, "bind", GPU, "--yes", "--simulate", "laptop", "--json")
        assert done.returncode == code
        error = json.loads(done.stdout)["error"]
        assert (error["exit_code"], error["kind"]) == (code, kind)
        assert error["message"].startswith("interrupted: 0000:01:00.0, ")
        assert error["message"].endswith(" put back as before")
        assert Host.simulated("laptop").history()[0].state == "back"

    def test_while_it_waits(self, number: int, code: int, kind: str) -> None:
        del kind
        done = signalled(WAITING, number, "bind", "gpu0", "--wait", "60s", "--simulate", "busy")
        assert (done.returncode, done.stdout) == (code, "")
        assert done.stderr.endswith("vfioctl: interrupted\n")
        assert Host.simulated("busy").history() == ()


def test_a_change_that_ignores_the_hangup_is_made() -> None:
    """As with nohup: the terminal is gone, and the change goes on."""
    words = [sys.executable, "-c", PROGRAM, WRITING, str(int(signal.SIGHUP)), "bind", GPU, "--simulate", "laptop"]
    done = subprocess.run(["nohup", *words], cwd=ROOT, check=False, capture_output=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    assert Host.simulated("laptop").history()[0].state == "done"


BOUND = f"bind {GPU} --yes --simulate laptop"
ASKING = (
    ("", f"bind {GPU} --simulate laptop"),
    (BOUND, f"unbind {GPU} --simulate laptop"),
    ("bind gpu1 --yes --simulate hgx8", "reset gpu1 --simulate hgx8"),
    ("", "vgpu create T4-4C --simulate t4"),
    ("", "sriov set 00:02.0 2 --simulate laptop"),
    ("sriov set 00:02.0 2 --yes --simulate laptop", "sriov off 00:02.0 --simulate laptop"),
    ("", "sriov profile 03:00.0 vf1/exec_quantum_ms=10 --simulate xe"),
    (f"{BOUND};un{BOUND}", "history prune --keep 1 --simulate laptop"),
)


@pytest.mark.parametrize(("before", "line"), ASKING)
def test_an_answer_of_no_changes_nothing(run: Run, before: str, line: str) -> None:
    for each in filter(None, before.split(";")):
        assert run(each).code == 0
    host = line.rsplit(maxsplit=1)[-1]
    changes = run(f"history --json --simulate {host}").document
    code, _, shown = answered([sys.executable, "-c", CONSOLE, *line.split()], "n\n")
    assert (code, "not confirmed: nothing was changed" in shown) == (1, True), shown
    assert run(f"history --json --simulate {host}").document == changes


@pytest.mark.parametrize(("before", "line"), ASKING)
def test_without_a_terminal_nothing_is_asked(run: Run, before: str, line: str) -> None:
    for each in filter(None, before.split(";")):
        assert run(each).code == 0
    answer = run(line)
    assert answer.code == 0
    assert "Continue?" not in answer.err
    assert run(f"history --json --simulate {line.rsplit(maxsplit=1)[-1]}").document["entries"]


def test_a_signal_at_the_question_has_its_exit_code(run: Run) -> None:
    ours, theirs = pty.openpty()
    program = [sys.executable, "-c", CONSOLE, "bind", GPU, "--simulate", "laptop"]
    with running(program, cwd=ROOT, stdin=theirs, stderr=theirs, stdout=subprocess.DEVNULL) as child:
        os.close(theirs)
        shown = b""
        while b"Continue?" not in shown:
            shown += os.read(ours, 65536)
        while child.poll() is None:  # one that comes just before the read of the answer is not heard
            child.terminate()
            time.sleep(0.1)
    os.close(ours)
    assert child.returncode == 143
    assert run("history --json --simulate laptop").document == {"entries": []}
