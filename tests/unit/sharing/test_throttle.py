"""Freezing and thawing: never unwatched, never what must not be, and never for longer than allowed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tests.unit.sharing.stand_in import Groups, Machine
from vfioctl.errors import KernelRefused
from vfioctl.kernel.open_nodes import Opened, OpenNode
from vfioctl.kernel.protocol import Unanswered
from vfioctl.sharing.throttling import throttle as throttling
from vfioctl.sharing.throttling.exclusions import Exclusions
from vfioctl.sharing.throttling.throttle import Throttle

A, B = "/user.slice/a", "/user.slice/b"


def long(path: str) -> float:
    return 600.0


class Stage:
    """A throttle, and the machine that it throttles."""

    def __init__(self) -> None:
        self.groups = Groups({A: [10], B: [11]})
        self.machine = Machine(self.groups)
        self.latencies: list[float] = []
        self.why: dict[str, str] = {}
        self.throttle = Throttle(
            self.groups, self.machine.thaw_watchdog, lambda path: self.why.get(path, ""), self.latencies.append
        )

    @property
    def log(self) -> list[str]:
        return self.groups.log


@pytest.fixture
def stage() -> Iterator[Stage]:
    there = Stage()
    yield there
    there.throttle.close()
    assert not there.groups.asked, "something is left frozen"


def test_a_group_is_announced_before_it_is_frozen_and_retracted_after_it_is_thawed(stage: Stage) -> None:
    stage.throttle.apply({A}, long)
    stage.throttle.apply(set(), long)
    assert stage.log == [f"announce {A}", f"freeze {A}", f"thaw {A}", f"retract {A}"]
    assert len(stage.latencies) == 1


def test_what_stays_frozen_is_not_frozen_again(stage: Stage) -> None:
    stage.throttle.apply({A}, long)
    stage.throttle.apply({A, B}, long)
    assert stage.throttle.frozen == {A, B}
    assert stage.log.count(f"freeze {A}") == 1


def test_the_end_thaws_all(stage: Stage) -> None:
    stage.throttle.apply({A, B}, long)
    stage.throttle.close()
    assert not stage.groups.asked
    assert not stage.machine.watchdogs[0].is_alive


def test_frozen_time_is_counted(stage: Stage) -> None:
    stage.throttle.apply({A}, long)
    time.sleep(0.1)
    stage.throttle.apply({A}, long)
    assert stage.throttle.seconds[A] == pytest.approx(0.1, abs=0.08)
    assert B not in stage.throttle.seconds


def test_no_freeze_is_longer_than_its_bound(stage: Stage) -> None:
    stage.throttle.apply({A}, lambda _: 0.05)
    time.sleep(0.1)
    stage.throttle.apply({A}, lambda _: 0.05)
    assert f"thaw {A}" in stage.log


class TestRefusals:
    def test_an_excluded_group_is_not_frozen_and_the_others_are(self, stage: Stage) -> None:
        stage.why[A] = "process 1 is in it"
        stage.throttle.apply({A, B}, long)
        assert stage.throttle.frozen == {B}
        assert stage.throttle.refused == {A: "process 1 is in it"}

    def test_what_somebody_else_has_frozen_is_left_alone(self, stage: Stage) -> None:
        stage.groups.asked.add(A)
        stage.throttle.apply({A}, long)
        stage.throttle.apply(set(), long)
        assert stage.groups.asked == {A}
        assert stage.log == []
        stage.groups.asked.clear()

    def test_a_slow_answer_is_good_for_longer(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        """All groups wait for each answer."""
        monkeypatch.setattr(throttling, "_SLOW", 0.0)
        stage.why[A] = "its open files are unknown"
        stage.throttle.apply({A}, long)
        later = time.monotonic() + 50
        monkeypatch.setattr(time, "monotonic", lambda: later)
        assert stage.throttle.refused == {A: "its open files are unknown"}

    def test_a_group_that_is_gone_costs_itself(self, stage: Stage) -> None:
        stage.throttle.apply({"/gone", B}, long)
        assert stage.throttle.frozen == {B}
        assert "ENOENT" in stage.throttle.refused["/gone"]

    def test_a_group_that_the_watchdog_cannot_open_costs_itself(self, stage: Stage) -> None:
        stage.throttle.apply({B}, long)
        stage.machine.watchdogs[0].refuses.add(A)
        stage.throttle.apply({A, B}, long)
        assert stage.throttle.frozen == {B}
        assert "EACCES" in stage.throttle.refused[A]
        assert stage.throttle.problem == ""

    def test_what_may_not_be_frozen_any_more_when_it_is_is_thawed_at_once(self, stage: Stage) -> None:
        """A process of it has opened the display between the look and the freeze."""
        answers = iter(["", "it drives a display"])
        stage.throttle._why = lambda _: next(answers)
        stage.throttle.apply({A}, long)
        assert stage.log == [f"announce {A}", f"freeze {A}", f"thaw {A}", f"retract {A}"]
        assert stage.throttle.refused == {A: "it drives a display"}

    def test_one_that_cannot_be_thawed_is_tried_again_and_stays_watched(self, stage: Stage) -> None:
        stage.throttle.apply({A}, long)
        stage.groups.stuck.add(A)
        stage.throttle.apply(set(), long)
        assert stage.throttle.frozen == {A}
        assert f"retract {A}" not in stage.log
        stage.groups.stuck.clear()
        stage.throttle.apply(set(), long)
        assert stage.throttle.frozen == set()
        assert stage.log[-2:] == [f"thaw {A}", f"retract {A}"]

    def test_a_frozen_group_that_ends_is_forgotten(self, stage: Stage) -> None:
        stage.throttle.apply({A}, long)
        stage.groups.asked.discard(A)
        del stage.groups.members[A]
        stage.throttle.apply({A}, long)
        assert stage.throttle.frozen == set()

    def test_what_another_one_thawed_counts_as_thawed(self, stage: Stage) -> None:
        stage.throttle.apply({A}, long)
        stage.groups.asked.discard(A)
        stage.throttle.apply(set(), long)
        assert stage.throttle.frozen == set()


class TestLatency:
    def test_a_process_that_does_not_freeze_at_once_is_measured_when_it_has(self, stage: Stage) -> None:
        stage.groups.slow.add(A)
        stage.throttle.apply({A}, long)
        assert stage.latencies == []
        time.sleep(0.1)
        stage.groups.slow.clear()
        stage.throttle.apply({A}, long)
        stage.throttle.apply({A}, long)
        assert len(stage.latencies) == 1
        assert stage.latencies[0] >= 0.1


class TestWatchdog:
    def test_without_one_nothing_is_frozen(self, stage: Stage) -> None:
        stage.throttle.apply({A}, long)
        stage.throttle.apply(set(), long)
        stage.machine.watchdogs[0].deaf = True
        stage.throttle.apply({A, B}, long)
        assert not stage.groups.asked
        assert "did not answer" in stage.throttle.problem

    def test_when_it_has_ended_all_are_thawed_and_a_new_one_watches(self, stage: Stage) -> None:
        stage.throttle.apply({A}, long)
        stage.machine.watchdogs[0].is_alive = False
        del stage.log[:]
        stage.throttle.apply({A}, long)
        assert stage.log[0] == f"thaw {A}"
        assert len(stage.machine.watchdogs) == 2
        assert stage.log[-2:] == [f"announce {A}", f"freeze {A}"]

    def test_one_that_cannot_watch_a_group_thaws_the_others_with_its_end(self, stage: Stage) -> None:
        stage.throttle.apply({A}, long)
        stage.machine.watchdogs[0].deaf = True
        stage.throttle.apply({A, B}, long)
        assert not stage.groups.asked
        assert not stage.machine.watchdogs[0].is_alive

    def test_it_is_started_again_later(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(throttling, "_AGAIN", 0.0)
        stage.throttle.apply({A}, long)
        stage.machine.watchdogs[0].deaf = True
        stage.throttle.apply({A, B}, long)
        stage.throttle.apply({A}, long)
        assert stage.throttle.frozen == {A}
        assert stage.throttle.problem == ""

    def test_it_is_started_again_if_nothing_is_to_be_frozen_any_more(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(throttling, "_AGAIN", 0.0)
        stage.throttle.apply({A}, long)
        stage.machine.watchdogs[0].deaf = True
        stage.throttle.apply({A, B}, long)
        assert stage.throttle.problem
        stage.throttle.apply(set(), long)
        assert stage.throttle.problem == ""


class Kernel:
    """The open files of processes."""

    def __init__(self) -> None:
        self.open: dict[str, Opened | KernelRefused | Unanswered] = {}
        self.asked: list[str] = []

    def open_nodes(self, pid: str) -> Opened:
        found = self.open.get(pid, Opened())
        assert not isinstance(found, Unanswered)
        if isinstance(found, KernelRefused):
            raise found
        return found

    def survey(
        self,
        reader: Callable[[Any], Callable[[str], str]],
        subjects: Sequence[str],
        *,
        total: float,
    ) -> Iterator[tuple[str, str | Unanswered]]:
        assert total <= 5
        for pid in subjects:
            self.asked.append(pid)
            found = self.open.get(pid)
            yield pid, found if isinstance(found, Unanswered) else reader(self)(pid)


def node(number: str, path: str) -> Opened:
    return Opened((OpenNode("open", path, number, ""),))


class TestExclusions:
    @pytest.fixture
    def kernel(self) -> Kernel:
        return Kernel()

    @staticmethod
    def why(kernel: Kernel, path: str, groups: Groups | None = None) -> str:
        groups = groups or Groups({A: [10, 12], B: [11]})
        return Exclusions(kernel, groups, lambda: {os.getpid()}).why(path)  # type: ignore[arg-type] # a part of it

    def test_a_group_of_programs_may_be_frozen(self, kernel: Kernel) -> None:
        kernel.open["10"] = node("c 226:128", "/dev/dri/renderD128")
        kernel.open["12"] = node("c 195:0", "/dev/nvidia0")
        assert self.why(kernel, A) == ""

    @pytest.mark.parametrize(("number", "path"), [("c 226:0", "/dev/dri/card0"), ("c 195:254", "/dev/nvidia-modeset")])
    def test_a_display_server_is_never_frozen(self, kernel: Kernel, number: str, path: str) -> None:
        kernel.open["12"] = node(number, path)
        assert path in self.why(kernel, A)

    @pytest.mark.parametrize(
        "unknown",
        [
            KernelRefused("/proc/12/fd", 13),
            Opened((), "its file descriptor 3 could not be read (EIO)"),
            Unanswered("no answer in 2 s"),
        ],
    )
    def test_what_is_unknown_is_not_frozen(self, kernel: Kernel, unknown: Opened | KernelRefused | Unanswered) -> None:
        kernel.open["12"] = unknown
        assert "unknown" in self.why(kernel, A)

    def test_a_process_that_has_ended_is_no_reason(self, kernel: Kernel) -> None:
        kernel.open["12"] = KernelRefused("/proc/12/fd", 2)
        assert self.why(kernel, A) == ""

    @pytest.mark.parametrize("path", ["/", "/init.scope", "/system.slice", "/user.slice", A])
    def test_the_systems_groups_and_those_of_vfioctl_are_never_frozen(self, kernel: Kernel, path: str) -> None:
        groups = Groups({name: [10] for name in ("/", "/init.scope", "/system.slice", "/user.slice", A)}, own=f"{A}/b")
        assert self.why(kernel, path, groups)

    def test_a_group_with_the_name_of_ours_as_its_beginning_is_another_one(self, kernel: Kernel) -> None:
        assert self.why(kernel, A, Groups({A: [10]}, own=f"{A}b")) == ""

    @pytest.mark.parametrize("pid", [1, os.getpid()], ids=["1", "own"])
    def test_process_1_and_vfioctl_are_never_frozen(self, kernel: Kernel, pid: int) -> None:
        assert self.why(kernel, A, Groups({A: [10, pid]}))

    def test_an_answer_is_good_for_a_while(self, kernel: Kernel) -> None:
        exclusions = Exclusions(kernel, Groups({A: [10]}), set)  # type: ignore[arg-type] # a part of it
        assert exclusions.known(A) == exclusions.known(A) == ""
        assert kernel.asked == ["10"]

    def test_before_a_freeze_it_is_asked_again(self, kernel: Kernel) -> None:
        exclusions = Exclusions(kernel, Groups({A: [10]}), set)  # type: ignore[arg-type] # a part of it
        assert exclusions.known(A) == exclusions.why(A) == ""
        kernel.open["10"] = node("c 226:0", "/dev/dri/card0")
        assert "display" in exclusions.why(A)
