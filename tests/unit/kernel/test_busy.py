"""A busy machine is not a broken one: time counts while a worker sleeps or runs, not while it waits for a processor."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from vfioctl.kernel.live import hwdb
from vfioctl.kernel.live.host import Live
from vfioctl.kernel.protocol import Unanswered, per_subject
from vfioctl.kernel.timeouts import Timeouts
from vfioctl.kernel.worker import stall, survey
from vfioctl.kernel.worker.job import begin, call
from vfioctl.kernel.worker.stall import Unreturned, _counting, _Usage

pytestmark = pytest.mark.alone  # it keeps a processor busy

TIMEOUT = 0.4
FROZEN = 2.5
"""Longer than two readings with TIMEOUT."""
PERIOD = 100_000
"""Microseconds of a period of a control group's quota."""


@per_subject
def stopped(_: object, subject: str) -> str:
    """Stops its own process, as a debugger or a frozen control group does."""
    file, _, answer = subject.partition(" ")
    with suppress(FileExistsError):
        os.close(os.open(file, os.O_CREAT | os.O_EXCL))
        Path(f"{file}.pid").write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
    return answer


@per_subject
def starved(_: object, subject: str) -> str:
    """Needs 60 ms of a processor on which others run, and gets about a twentieth of it."""
    if subject == "busy":
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    else:
        Path(subject, "cgroup.procs").write_text(str(os.getpid()))
    compute(0.06)
    return subject


@per_subject
def spinning(_: object, subject: str) -> str:
    compute(20.0)
    return subject


@per_subject
def named(kernel: Live, subject: str) -> str:
    """Reads for a while, and opens a database of names of which each part takes as long to load."""

    def load(report_progress: Callable[[], None]) -> hwdb.Names:
        time.sleep(TIMEOUT * 0.7)
        report_progress()
        time.sleep(TIMEOUT * 0.7)
        return lambda modalias: {"NAME": modalias}

    hwdb.hardware_database = load
    time.sleep(TIMEOUT * 0.7)
    return kernel.properties(subject)["NAME"]


def compute(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def stop_and_answer(file: str) -> int:
    Path(f"{file}.pid").write_text(str(os.getpid()))
    os.kill(os.getpid(), signal.SIGSTOP)
    return 7


@contextmanager
def continued(file: Path, after: float = FROZEN) -> Iterator[None]:
    """Continues the process that the file names, this many seconds after it has stopped."""

    def go_on() -> None:
        until = time.monotonic() + 20
        while not (pid := text(Path(f"{file}.pid"))) and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(after)
        os.kill(int(pid), signal.SIGCONT)

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


@pytest.fixture
def busy() -> Iterator[None]:
    """16 programs that never wait, on the first processor; each in a session, for the kernel shares it by sessions."""
    loop = ["sh", "-c", "while :; do :; done"]
    programs = [subprocess.Popen(loop, start_new_session=True) for _ in range(16)]
    try:
        for program in programs:
            os.sched_setaffinity(program.pid, {min(os.sched_getaffinity(0))})
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


@pytest.fixture
def throttled() -> Iterator[Path]:
    """A control group that gets a twentieth of a processor."""
    name, quota = f"vfioctl-test-{os.getpid()}", PERIOD // 20
    group = next((h / name for h in map(Path, ("/sys/fs/cgroup", "/sys/fs/cgroup/cpu")) if h.is_dir()), Path("/none"))
    if not Path("/sys/fs/cgroup/cgroup.controllers").exists():
        group = Path("/sys/fs/cgroup/cpu", name)
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error.strerror}")
    try:
        if (group / "cpu.max").exists():
            (group / "cpu.max").write_text(f"{quota} {PERIOD}")
        else:
            (group / "cpu.cfs_quota_us").write_text(str(quota))
        yield group
    except OSError as error:
        pytest.skip(f"no control group can be limited: {error.strerror}")
    finally:
        until = time.monotonic() + 20
        while group.exists() and time.monotonic() < until:
            with suppress(OSError):
                group.rmdir()
            time.sleep(0.05)


class TestSurvey:
    def test_a_worker_frozen_for_longer_than_two_readings_answers_later(self, tmp_path: Path) -> None:
        with continued(tmp_path / "first"):
            answers = dict(Live().survey(stopped, [f"{tmp_path}/first one", f"{tmp_path}/first two"], timeout=TIMEOUT))
        assert answers == {f"{tmp_path}/first one": "one", f"{tmp_path}/first two": "two"}

    @pytest.mark.usefixtures("busy")
    def test_a_worker_beside_programs_that_never_wait_answers_later(self) -> None:
        assert dict(Live().survey(starved, ["busy"], timeout=TIMEOUT)) == {"busy": "busy"}

    def test_a_worker_in_a_throttled_control_group_answers_later(self, throttled: Path) -> None:
        assert dict(Live().survey(starved, [str(throttled)], timeout=TIMEOUT)) == {str(throttled): str(throttled)}

    def test_loading_names_is_no_part_of_what_the_kernel_takes_to_answer(self) -> None:
        assert dict(Live().survey(named, ["x"], timeout=TIMEOUT)) == {"x": "x"}

    def test_a_worker_that_really_runs_is_given_up(self) -> None:
        began = time.monotonic()
        assert dict(Live().survey(spinning, ["x"], timeout=TIMEOUT)) == {"x": Unanswered(f"no answer in {TIMEOUT:g} s")}
        assert time.monotonic() - began < 15

    def test_a_worker_that_is_never_continued_is_given_up_at_the_larger_limit(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(stall, "BUSY_TIMEOUT", 0.6)
        subject = f"{tmp_path}/first one"
        reason = "no answer in 1 s: the machine is too busy, or the process is stopped"
        assert dict(Live().survey(stopped, [subject], timeout=TIMEOUT)) == {subject: Unanswered(reason)}

    def test_the_limit_of_a_whole_survey_is_longer_by_the_time_without_a_processor(self) -> None:
        class Shard:
            kept_waiting = 7.5

        assert survey._kept_waiting([Shard()]) == 7.5  # type: ignore[list-item] # of which this is used
        Shard.kept_waiting = 1e9
        assert survey._kept_waiting([Shard()]) == stall.BUSY_TIMEOUT  # type: ignore[list-item] # likewise


class TestCalls:
    def test_a_call_that_was_stopped_is_waited_for(self, tmp_path: Path) -> None:
        with continued(tmp_path / "job"):
            assert call(Live()._workers.server, stop_and_answer, str(tmp_path / "job"), timeout=TIMEOUT) == 7

    def test_one_that_was_begun_long_ago_too(self, tmp_path: Path) -> None:
        live = Live()
        with continued(tmp_path / "job"):
            wait = begin(live._workers.server, stop_and_answer, str(tmp_path / "job"), timeout=TIMEOUT)
            time.sleep(2 * TIMEOUT)
            assert wait() == 7

    def test_a_write_whose_worker_was_stopped_is_waited_for(self, tmp_path: Path) -> None:
        live = Live(timeouts=Timeouts(default=TIMEOUT))
        file = tmp_path / "attribute"
        file.touch()
        live.write(str(file), "1")
        (worker,) = live._workers._idle
        Path(f"{file}.pid").write_text(str(worker.job.pid))
        os.kill(worker.job.pid, signal.SIGSTOP)
        with continued(file):
            live.write(str(file), "2")
        assert file.read_text() == "2"

    def test_an_answer_that_came_while_the_caller_waited_counts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The caller is kept from looking for longer than the timeout, and the answer has come meanwhile."""
        look: Callable[[stall.Stall], bool] = stall.Stall.is_over

        def late(waited: stall.Stall) -> bool:
            time.sleep(2 * TIMEOUT)
            look(waited)
            return True

        monkeypatch.setattr(stall.Stall, "is_over", late)
        assert call(Live()._workers.server, slowly, timeout=TIMEOUT) == 7


def slowly() -> int:
    time.sleep(TIMEOUT * 0.75)
    return 7


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        (None, 2.0),  # it is not known: all of the time
        (_Usage(is_kept_waiting=False, running=1.0, waiting=1.0), 2.0),  # it slept
        (_Usage(is_kept_waiting=False, running=1.0, waiting=2.5), 0.5),
        (_Usage(is_kept_waiting=False, running=1.0, waiting=9.0), 0.0),  # it waited since before the last look
        (_Usage(is_kept_waiting=True, running=1.0, waiting=1.0), 0.0),
        (_Usage(is_kept_waiting=True, running=1.5, waiting=1.0), 0.5),
        (_Usage(is_kept_waiting=True, running=9.0, waiting=1.0), 2.0),
    ],
)
def test_what_counts(usage: _Usage | None, counts: float) -> None:
    assert _counting(_Usage(is_kept_waiting=False, running=1.0, waiting=1.0), usage, 2.0) == counts


def test_a_frozen_process_waits_wherever_the_kernel_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"stat": "7 (a) b) S " + " ".join(map(str, range(4, 53))), "wchan": "do_freezer_trap", "schedstat": ""}
    monkeypatch.setattr(stall, "process_text", lambda _, name: texts[name])
    found = stall._usage_of(7)
    assert found == _Usage(is_kept_waiting=True, running=(14 + 15) / os.sysconf("SC_CLK_TCK"), waiting=0.0)
    texts["wchan"] = "kernfs_fop_read_iter"
    assert not stall._usage_of(7).is_kept_waiting  # type: ignore[union-attr] # it is there
    texts["stat"] = ""
    assert stall._usage_of(7) is None


def test_the_error_says_why() -> None:
    assert str(Unreturned(0, 2.0)) == "no answer in 2 s"
