"""A host that logs what is asked of it: every answer as without, and each with path, value, result and duration."""

from __future__ import annotations

import inspect
import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.conftest import Run
from vfioctl import sources
from vfioctl.errors import KernelRefused
from vfioctl.kernel.lenient import text
from vfioctl.kernel.logged import EFFECTS, READS, logged
from vfioctl.kernel.protocol import Kernel
from vfioctl.session import Session

ROOT = Path(__file__).resolve().parents[3]
GPU = "/sys/bus/pci/devices/0000:01:00.0"


@pytest.fixture
def kernel(caplog: pytest.LogCaptureFixture) -> Kernel:
    caplog.set_level(logging.DEBUG, "vfioctl.kernel")
    return logged(sources.simulated(Session, "laptop").kernel)


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Level and message of all that was logged, without durations."""
    records = [(record.levelname, record.getMessage()) for record in caplog.records]
    caplog.clear()
    assert all(re.search(r" \(\d+\.\d ms\)$", message) for _, message in records)
    return [(level, re.sub(r" \([0-9.]+ ms\)$", "", message)) for level, message in records]


class TestKernel:
    def test_reads_are_debug(self, kernel: Kernel, caplog: pytest.LogCaptureFixture) -> None:
        assert kernel.read(f"{GPU}/vendor") == "0x10de"
        assert kernel.has(GPU)
        assert told(caplog) == [("DEBUG", f"read {GPU}/vendor: '0x10de'"), ("DEBUG", f"has {GPU}: True")]

    def test_writes_are_info_with_their_value(self, kernel: Kernel, caplog: pytest.LogCaptureFixture) -> None:
        kernel.write(f"{GPU}/driver_override", "vfio-pci\n")
        kernel.load("vfio-pci")
        assert told(caplog) == [
            ("INFO", f"write {GPU}/driver_override <- 'vfio-pci\\n': done"),
            ("INFO", "load vfio-pci: done"),
        ]

    def test_refusals_are_told_by_their_errno(self, kernel: Kernel, caplog: pytest.LogCaptureFixture) -> None:
        with pytest.raises(KernelRefused):
            kernel.read("/sys/nothing")
        with pytest.raises(KernelRefused):
            kernel.write("/sys/nothing", "1")
        assert told(caplog) == [("DEBUG", "read /sys/nothing: ENOENT"), ("INFO", "write /sys/nothing <- '1': ENOENT")]

    def test_surveys_are_debug_subject_by_subject(self, kernel: Kernel, caplog: pytest.LogCaptureFixture) -> None:
        answers = list(kernel.survey(text, [f"{GPU}/vendor", f"{GPU}/device"]))
        assert answers == [(f"{GPU}/vendor", "0x10de"), (f"{GPU}/device", "0x25a0")]
        assert told(caplog) == [
            ("DEBUG", f"survey text {GPU}/vendor: '0x10de'"),
            ("DEBUG", f"survey text {GPU}/device: '0x25a0'"),
        ]

    def test_long_values_are_cut_and_no_value_drives_the_terminal(
        self, kernel: Kernel, caplog: pytest.LogCaptureFixture
    ) -> None:
        with pytest.raises(KernelRefused):
            kernel.write("/sys/nothing", "\x1b[2J" + "x" * 10_000)
        ((_, message),) = told(caplog)
        assert len(message) < 300
        assert "\x1b" not in message

    def test_of_a_document_only_its_length_is_told(self, kernel: Kernel, caplog: pytest.LogCaptureFixture) -> None:
        with pytest.raises(KernelRefused):
            kernel.write("/sys/nothing", "\n<graphics passwd='x'/>")
        assert told(caplog) == [("INFO", "write /sys/nothing <- 'a document of 23 characters': ENOENT")]

    def test_at_info_reads_cost_nothing(self, kernel: Kernel, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "vfioctl.kernel")
        assert kernel.read(f"{GPU}/vendor") == "0x10de"
        assert told(caplog) == []

    def test_everything_that_a_host_can_do_is_logged_but_its_lock(self) -> None:
        named = {name for name, value in inspect.getmembers(Kernel, inspect.isfunction) if not name.startswith("_")}
        services = {"uevents", "domain_events", "gpu_errors", "gpu_sharing"}
        assert named - EFFECTS - READS <= {"survey", "prepare", "exclusive", *services}
        assert named >= EFFECTS | READS

    def test_the_rest_is_the_hosts_own(self, kernel: Kernel) -> None:
        assert kernel.read_only == ""
        assert "laptop" in kernel.description


class TestCommands:
    @pytest.mark.parametrize(
        "line",
        [
            "-v bind gpu0 --simulate laptop",
            "bind gpu0 --simulate laptop --verbose",
            "bind gpu0 --simulate laptop --log-level info",
        ],
    )
    def test_say_what_they_write(self, run: Run, line: str) -> None:
        answer = run(line)
        assert answer.code == 0
        assert f"info: write {GPU}/driver_override <- 'vfio-pci': done (" in answer.err
        assert "info: bind 0000:01:00.0: done\n" in answer.err
        assert "debug: " not in answer.err
        assert "info: " not in answer.out

    def test_say_what_they_read_when_asked_for_it(self, run: Run) -> None:
        answer = run("inventory --log-level debug --json --host laptop")
        assert "debug: survey " in answer.err
        assert answer.document["gpus"]
        assert answer.out == run("inventory --json --host laptop").out

    def test_say_nothing_otherwise(self, run: Run) -> None:
        assert run("inventory --host laptop -v").err == ""
        assert run("inventory --host laptop").err == ""
        assert "write" not in run("bind gpu0 --json --simulate laptop --log-level error").err.replace("<-", "")

    def test_the_level_says_more_than_verbose(self, run: Run) -> None:
        assert "debug: " in run("inventory -v --log-level debug --host laptop").err
        assert "info: " not in run("bind gpu0 --log-level error -v --simulate laptop").err

    @pytest.mark.parametrize("level", ["loud", "", "INFOS"])
    def test_odd_levels_are_refused_with_those_there_are(self, run: Run, level: str) -> None:
        answer = run("inventory --host laptop --log-level", level)
        assert (answer.code, answer.out) == (2, "")
        assert "'error', 'warning', 'info', 'debug'" in answer.err

    def test_refusals_are_logged_as_errors(self, run: Run) -> None:
        answer = run("bind gpu0 --host laptop --log-level error")
        assert answer.code == 3
        assert "error: bind 0000:01:00.0: NotPermitted: " in answer.err

    def test_a_refusal_is_told_once_without_a_log(self) -> None:
        """In a process of its own: pytest listens to all logs."""
        command = [sys.executable, "-m", "vfioctl.app", "bind", "gpu0", "--host", "laptop"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr.count("read-only")) == (3, 1)

    def test_a_command_to_run_next_is_not_more_talkative(self, run: Run) -> None:
        assert run("show gpu9 --host laptop -v").err.splitlines()[-1] == "  next:     vfioctl inventory --host laptop"
