"""Signals to a process that changes a host, at each moment of the change: it is rolled back or finished, and the exit
code says which signal it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager

import pytest

from tests.unit.conftest import running
from tests.unit.test_exit_codes import CONSOLE, GPU, ROOT, SIGNALS, signalled
from vfioctl.host import Host
from vfioctl.kernel.lock import held

EACH = pytest.mark.parametrize(("number", "code"), [(number, code) for number, code, _ in SIGNALS])
BIND = f"bind {GPU} --yes --simulate laptop".split()
SLOW = 1.0


def changing(*words: str, faults: str = "") -> AbstractContextManager[subprocess.Popen[str]]:
    environment = {**os.environ, "VFIOCTL_FAULTS": faults}
    program = [sys.executable, "-c", CONSOLE, *words]
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    return running(program, cwd=ROOT, env=environment, text=True, **streams)


def read_until(child: subprocess.Popen[str], word: str) -> None:
    assert child.stderr is not None
    assert any(word in line for line in child.stderr), word


def states() -> list[str]:
    """The states of the changes of the laptop."""
    return [str(entry.state) for entry in Host.simulated("laptop").history()]


def driver() -> str | None:
    return Host.simulated("laptop").inventory().by_address[GPU].driver  # type: ignore[index]


@EACH
@pytest.mark.parametrize(
    ("place", "left"),
    [
        ("vfioctl.core.engine:refuse_stale", []),
        ("vfioctl.core.journal:Journal.begin", ["back"]),
        ("vfioctl.core.engine:verify_changes", ["back"]),
        ("vfioctl.core.engine:verify_checks", ["back"]),
        ("vfioctl.core.engine:Engine._close_done", ["done"]),
        ("vfioctl.console.changes:tell", ["done"]),
    ],
)
def test_at_a_moment(number: int, code: int, place: str, left: Sequence[str]) -> None:
    done = signalled(place, number, *BIND)
    assert (done.returncode, states()) == (code, left), done.stderr
    assert "Traceback" not in done.stderr
    assert driver() == ("vfio-pci" if left == ["done"] else "nouveau")


@EACH
def test_in_a_slow_step(number: int, code: int) -> None:
    with changing(*BIND, faults=f"1:slow={SLOW}") as child:
        read_until(child, "[3/")
        child.send_signal(number)
        assert child.wait(60) == code
    assert (states(), driver()) == (["back"], "nouveau")


@pytest.mark.parametrize("numbers", [(15, 15, 15), (15, 1, 2), (2, 2, 15), (1, 15, 2)])
def test_a_second_and_a_third_one_in_the_slow_step_and_its_rollback(numbers: Sequence[int]) -> None:
    with changing(*BIND, faults=f"4:slow={SLOW},5:slow={SLOW}") as child:
        read_until(child, "[6/")
        child.send_signal(numbers[0])
        read_until(child, "rolling back")
        for number in numbers[1:]:
            child.send_signal(number)
            time.sleep(0.05)
        assert child.wait(60) in {128 + number for number in numbers}
    assert (states(), driver()) == (["back"], "nouveau")


@EACH
def test_in_the_rollback_of_a_failure_the_failure_is_told(number: int, code: int) -> None:
    del code
    with changing(*BIND, faults=f"4:EBUSY,5:slow={SLOW}") as child:
        read_until(child, "rolling back")
        child.send_signal(number)
        assert child.wait(60) == 5
    assert (states(), driver()) == (["back"], "nouveau")


@EACH
def test_while_it_waits_for_the_lock(number: int, code: int) -> None:
    host = Host.simulated("laptop")
    with held(host.session.store.lock_file, wait=0), changing(*BIND) as child:
        read_until(child, "waiting for another vfioctl")
        child.send_signal(number)
        began = time.monotonic()
        assert child.wait(60) == code
        assert time.monotonic() - began < 5, "it would wait for ten seconds"
    assert (states(), driver()) == ([], "nouveau")


@EACH
def test_a_claim_that_is_being_made_has_failed(number: int, code: int) -> None:
    words = ["claim", "create", "--owner", "vm/a", "--device", "gpu0", "--yes", "--simulate", "hgx8"]
    with changing(*words, faults=f"3:slow={SLOW}") as child:
        read_until(child, "[5/")
        child.send_signal(number)
        assert child.wait(60) == code
    (claim,) = Host.simulated("hgx8").claims.claims(live_only=False)
    assert claim.state == "failed"
    assert [str(entry.state) for entry in Host.simulated("hgx8").history()] == ["back"]


@EACH
def test_between_the_reservation_and_the_change_of_a_claim(number: int, code: int) -> None:
    words = ["claim", "create", "--owner", "vm/a", "--device", "gpu0", "--yes", "--json", "--simulate", "hgx8"]
    done = signalled("vfioctl.claims.lifecycle.device_plans:plan_needed", number, *words)
    assert (done.returncode, json.loads(done.stdout)["error"]["exit_code"]) == (code, code)
    (claim,) = Host.simulated("hgx8").claims.claims(live_only=False)
    assert claim.state == "failed"
    assert Host.simulated("hgx8").history() == ()


@EACH
def test_in_the_report_of_a_failure_the_failure_is_told_first(number: int, code: int) -> None:
    done = signalled("vfioctl.console.failure:lines", number, "show", "0000:ff:00.0", "--simulate", "laptop")
    assert "there is no device" in done.stderr
    assert done.returncode == code
