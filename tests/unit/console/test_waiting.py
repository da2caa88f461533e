"""`--wait`: as long as somebody holds a device and there is time left, and no longer."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.hosts.machines import HOSTS
from tests.unit.conftest import PROGRAM, Run, running, until_closed
from vfioctl.console.waiting import Board, seconds_in
from vfioctl.core.change import Plan
from vfioctl.errors import BadSpec, DeviceInUse
from vfioctl.host import Host
from vfioctl.inventory.api import until_released
from vfioctl.kernel.simulated.files import replace

ROOT = HOSTS.parents[1]
HOLDER: dict[str, object] = {
    "address": "0000:01:00.0",
    "kind": "process",
    "pid": 7,
    "name": "python3",
    "user": "ada",
    "path": "/dev/nvidia0",
}


class TestDurations:
    @pytest.mark.parametrize(
        ("text", "seconds"),
        [("60s", 60), ("5m", 300), ("1h", 3600), ("1d", 86400), ("0s", 0), ("0.5s", 0.5), ("1.25m", 75), (None, 0)],
    )
    def test_are_understood(self, text: str | None, seconds: float) -> None:
        assert seconds_in(text) == seconds

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "s",
            "-1s",
            "90",
            "0",
            "1 s",
            "1e3",
            "inf",
            "nan",
            "\u0661s",
            ".5",
            "1.",
            "9999999s",
            "1.2345s",
            "30s1m",
            "x" * 10_000,
        ],
    )
    def test_that_are_none_are_refused(self, text: str) -> None:
        with pytest.raises(BadSpec, match="not a duration") as caught:
            seconds_in(text)
        assert len(caught.value.message) < 100
        assert "60s, 5m, 1h30m, 1d or 1w" in caught.value.hint

    def test_that_are_none_are_told_before_anything_is_planned(self, run: Run) -> None:
        answer = run("bind gpu3 --wait soon --simulate busy")
        assert (answer.code, answer.out) == (2, "")
        assert "not a duration: 'soon'" in answer.err


class Clock:
    """Time that goes on only when somebody waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.slept: list[float] = []
        monkeypatch.setattr("vfioctl.inventory.api.time.monotonic", lambda: self.now)
        monkeypatch.setattr("vfioctl.inventory.api.time.sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def plan() -> Plan:
    return Host.recorded("laptop").binding.plan_bind(["gpu0"])


def planned(make: Callable[[], Plan], *, wait: str | None) -> Plan:
    """As the commands do it."""
    with Board() as board:
        return until_released(make, wait=seconds_in(wait), waiting=board.show)


def held(times: int, plan: Plan, *holders: dict[str, object], facts: bool = True) -> Callable[[], Plan]:
    """Held so many times, and free then."""
    left = [times]

    def make() -> Plan:
        left[0] -= 1
        if left[0] >= 0:
            raise DeviceInUse("it is held", facts={"holders": list(holders or (HOLDER,))} if facts else {})
        return plan

    return make


class TestWaiting:
    def test_is_not_done_where_nobody_holds_it(self, clock: Clock, plan: Plan) -> None:
        assert planned(held(0, plan), wait="60s") == plan
        assert clock.slept == []

    def test_ends_when_they_let_go(self, clock: Clock, plan: Plan) -> None:
        assert planned(held(3, plan), wait="60s") == plan
        assert clock.slept == [0.5, 0.5, 0.5]

    def test_ends_with_its_time_and_what_the_holders_were(self, clock: Clock, plan: Plan) -> None:
        with pytest.raises(DeviceInUse, match="it is held"):
            planned(held(1000, plan), wait="1.2s")
        assert clock.slept == [0.5, 0.5, pytest.approx(0.2)]

    @pytest.mark.parametrize("wait", [None, "0s"])
    def test_is_not_done_unless_asked(self, clock: Clock, plan: Plan, wait: str | None) -> None:
        with pytest.raises(DeviceInUse):
            planned(held(1, plan), wait=wait)
        assert clock.slept == []

    def test_is_not_done_for_what_nobody_holds(self, clock: Clock, plan: Plan) -> None:
        """The boot display, live VFs, a wedged device: these end by no waiting."""
        with pytest.raises(DeviceInUse):
            planned(held(1, plan, facts=False), wait="60s")
        assert clock.slept == []

    @pytest.mark.usefixtures("clock")
    def test_says_each_holder_once_and_again_when_they_change(
        self, plan: Plan, capsys: pytest.CaptureFixture[str]
    ) -> None:
        guest = HOLDER | {"pid": 9, "name": "qemu", "user": None, "guest": "win11"}
        disk: Mapping[str, object] = {"address": "0000:05:00.0", "kind": "disk", "pid": None, "name": "/data"}
        rounds: list[list[Mapping[str, object]]] = [[HOLDER], [HOLDER], [HOLDER, guest], [guest], [disk]]

        def make() -> Plan:
            if not rounds:
                return plan
            raise DeviceInUse("it is held", facts={"holders": rounds.pop(0)})

        planned(make, wait="60s")
        python, qemu = (
            f"0000:01:00.0 is held by {who}: /dev/nvidia0"
            for who in ("python3 (process 7, ada)", "qemu (process 9, guest win11)")
        )
        told = [re.sub(r"for up to \d+ s", "...", line) for line in capsys.readouterr().err.splitlines()]
        assert told == [
            f"waiting ...: {line}" for line in (python, python, qemu, qemu, "0000:05:00.0 is held by /data")
        ]

    @pytest.mark.usefixtures("clock")
    def test_is_redrawn_in_place_at_a_terminal(self, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
        class Terminal(io.StringIO):
            def isatty(self) -> bool:
                return True

        screen = Terminal()
        monkeypatch.setattr(sys, "stderr", screen)
        planned(held(3, plan), wait="60s")
        shown = screen.getvalue()
        assert "Waiting up to 60 s for them to release it (Ctrl-C stops waiting):" in shown
        assert "Waiting up to 59 s" in shown
        assert "\x1b[2K" in shown, "what was there before is cleared"
        assert "waiting for up to" not in shown

    @pytest.mark.usefixtures("clock")
    def test_can_be_ended_by_hand(self, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupt(_seconds: float) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("vfioctl.inventory.api.time.sleep", interrupt)
        with pytest.raises(KeyboardInterrupt):
            planned(held(3, plan), wait="60s")

    @pytest.mark.usefixtures("clock")
    def test_without_a_stderr_is_done_in_silence(self, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "stderr", None)
        assert planned(held(2, plan), wait="60s") == plan


# -- from the outside ------------------------------------------------------------------------------------


@pytest.fixture
def busy(tmp_path: Path) -> Path:
    file = tmp_path / "busy.host"
    file.write_text((HOSTS / "busy.host").read_text(encoding="utf-8"), encoding="utf-8")
    return file


def ended(file: Path, *pids: int) -> None:
    """Those processes are there no more."""
    homes = tuple(f"/proc/{pid}/" for pid in pids)
    kept = [line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith(homes)]
    replace(file, "\n".join(kept) + "\n")


class TestOfACommand:
    def test_bind_goes_on_when_the_containers_have_ended(self, run: Run, busy: Path) -> None:
        later = threading.Timer(1.2, ended, (busy, 3107, 3395))
        later.start()
        answer = run(f"bind gpu0 --wait 60s --yes --json --simulate {busy}")
        later.join()
        assert (answer.code, answer.document["result"]) == (0, "done")
        said = r"waiting for up to [56]\d s: 0000:01:00\.0 is held by python3 \(process 3107, grace, docker/"
        assert re.search(said, answer.err)  # the first look takes time
        assert answer.err.count("held by tritonserver") == 1

    def test_unbind_goes_on_when_the_guest_has_ended(self, run: Run, busy: Path) -> None:
        later = threading.Timer(1.2, ended, (busy, 2684))
        later.start()
        answer = run(f"unbind gpu1 --wait 60s --yes --simulate {busy}")
        later.join()
        assert answer.code == 0
        assert "held by qemu-system-x86 (process 2684, libvirt-qemu, guest win11): /dev/vfio/3" in answer.err

    def test_reset_says_who_is_in_the_way_when_the_time_is_over(self, run: Run, busy: Path) -> None:
        began = time.monotonic()
        answer = run(f"reset gpu1 --wait 0.3s --yes --simulate {busy}")
        assert answer.code == 4
        assert time.monotonic() - began >= 0.3
        assert answer.err.splitlines()[-1] == f"  next:     vfioctl holders 0000:02:00.0 --simulate {busy}"

    def test_a_dry_run_waits_as_well_and_its_json_is_clean(self, run: Run, busy: Path) -> None:
        later = threading.Timer(0.8, ended, (busy, 3107, 3395))
        later.start()
        answer = run(f"bind gpu0 --wait 60s --dry-run --json --simulate {busy}")
        later.join()
        assert answer.code == 0
        assert answer.document["intent"]["devices"] == ["0000:01:00.0"]

    def test_ctrl_c_at_a_terminal_ends_it_and_leaves_no_trace(self, busy: Path) -> None:
        ours, theirs = pty.openpty()
        command = [*PROGRAM, "bind", "gpu0", "--wait", "60s", "--yes", "--simulate", str(busy)]
        with running(
            command, cwd=ROOT, stdin=theirs, stderr=theirs, stdout=subprocess.PIPE, start_new_session=True
        ) as child:
            os.close(theirs)
            shown = b""
            while b"tritonserver" not in shown:
                shown += os.read(ours, 65536)
            child.send_signal(2)
            shown += until_closed(ours)
            assert child.wait(20) == 130
        os.close(ours)
        assert re.search(rb"Waiting up to [56]\d s for them to release it", shown)  # the first look takes time
        assert Host.simulated(str(busy)).history() == ()


def test_holders_of_an_error_are_plain_data_for_json(run: Run, busy: Path) -> None:
    error = run(f"bind gpu0 --json --yes --simulate {busy}").document["error"]
    assert error["kind"] == "DeviceInUse"
    assert [(each["pid"], each["container"]) for each in error["facts"]["holders"]] == [
        (3107, "docker/116f54c41d04"),
        (3395, "cri-containerd/24c458cfb46d"),
    ]
    assert json.dumps(error)
