"""The line that shows that a command is still working: on a terminal only, from half a second on, and then gone."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.hosts.machines import HOSTS
from tests.unit.conftest import PROGRAM, running, until_closed
from vfioctl.console import spinner

ERASE = "\r\x1b[K"
SLOW = {"VFIOCTL_FAULTS": "2:slow=1.2"}


@pytest.fixture
def host(tmp_path: Path) -> Path:
    file = tmp_path / "hgx8.host"
    file.write_text((HOSTS / "hgx8.host").read_text())
    return file


def stderr_of(words: Sequence[str], environment: Mapping[str, str], *, columns: int = 80) -> tuple[str, str, int]:
    """What a command writes to a terminal that is its stderr, and to stdout; its exit code."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm", **environment}
    with running(
        [*PROGRAM, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs, env=environment, text=True
    ) as process:
        os.close(theirs)
        written = until_closed(ours)
        os.close(ours)
        results = process.communicate(timeout=60)[0]
    return written.decode(), results, process.returncode


def on_screen(written: str) -> list[str]:
    """The lines that are left on the screen."""
    return [line.split(ERASE)[-1] for line in written.replace("\r\n", "\n").strip("\n").split("\n")]


BIND = ["bind", "gpu1", "--yes", "--simulate"]


def test_a_slow_step_counts_on_and_is_erased(host: Path) -> None:
    written, results, code = stderr_of([*BIND, str(host)], SLOW)
    assert code == 0
    assert "Done: bind" in results
    seen = [float(seconds) for seconds in re.findall(r"[|/\\-] step \d of \d+: (\d+\.\d) s", written)]
    assert len(seen) >= 3
    assert seen == sorted(seen)
    assert seen[0] >= 0.5
    assert seen[-1] > seen[0]
    assert all(re.match(r"\[\d/\d\] ", line) for line in on_screen(written))


def test_a_rolled_back_step_leaves_only_words(host: Path) -> None:
    written, _, code = stderr_of([*BIND, str(host)], {"VFIOCTL_FAULTS": "2:slow=0.8,4:EIO"})
    assert code == 5
    assert " s" in written
    assert not [line for line in on_screen(written) if re.search(r"[|/\\-] (step|rolling)", line)]
    assert any("rolling back" in line for line in on_screen(written))


def test_it_fits_a_narrow_terminal(host: Path) -> None:
    written, _, _ = stderr_of([*BIND, str(host)], SLOW, columns=12)
    drawn = re.findall(r"\r\x1b\[K([|/\\-] step[^\r\n]*)", written)
    assert drawn
    assert all(len(line) < 12 for line in drawn)


@pytest.mark.parametrize(
    ("words", "environment"),
    [(["--quiet"], {}), ([], {"TERM": "dumb"}), ([], {"TERM": ""})],
    ids=["quiet", "dumb", "no terminal type"],
)
def test_where_nobody_can_read_it_there_is_none(host: Path, words: list[str], environment: dict[str, str]) -> None:
    written, _, code = stderr_of([*BIND, str(host), *words], SLOW | environment)
    assert code == 0
    assert "\x1b" not in written


def test_a_fast_command_shows_none() -> None:
    written, results, code = stderr_of(["inventory", "--simulate", "hgx8"], {})
    assert code == 0
    assert "0000:43:00.0" in results
    assert written.replace(ERASE, "") == written or " s" in written  # a busy machine may take half a second
    assert not [line for line in on_screen(written) if "working" in line]


def test_a_time_limit_of_the_command_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    monkeypatch.setattr(spinner, "_write", written.append)
    rang: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: rang.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        line = spinner.Spinner("working")
        line.stop()
        time.sleep(0.3)
        first = spinner.Spinner("working")
        signal.signal(signal.SIGALRM, lambda number, _: rang.append(number))
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        first.stop()
        time.sleep(0.3)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert rang == [signal.SIGALRM] * 2
    assert not written


def test_a_fast_command_has_one_thread_and_no_timer_left() -> None:
    line = spinner.Spinner("working")
    assert "spinner" not in [thread.name for thread in threading.enumerate()]
    line.stop()
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_pipe_gets_none(host: Path) -> None:
    done = subprocess.run(
        [*PROGRAM, *BIND, str(host)], env=os.environ | SLOW, capture_output=True, text=True, timeout=60, check=True
    )
    assert "\x1b" not in done.stderr + done.stdout
    assert "\r" not in done.stderr + done.stdout
