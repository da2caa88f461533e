"""A real terminal: tmux, driven by keys. The program starts, draws, resizes, ends; and leaves everything as it was."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.conftest import PROGRAM, ROOT, Run
from tests.unit.tui.conftest import HOSTS
from vfioctl.app import places
from vfioctl.console.lazy import built

pytestmark = pytest.mark.alone
_SECONDS = 30.0


class Tmux:
    """A terminal with a shell."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._socket = str(folder / "tmux")
        self("-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", "env PS1='ready: ' sh")

    def __call__(self, *words: str) -> str:
        environment = {**os.environ, "LC_ALL": "C.UTF-8"}
        line = ["tmux", "-S", self._socket, *words]
        done = subprocess.run(line, capture_output=True, text=True, check=False, env=environment)
        return done.stdout

    def type(self, text: str) -> None:
        """Type a line."""
        self("send-keys", "-l", text)
        self("send-keys", "Enter")

    @property
    def text(self) -> str:
        """What the terminal shows."""
        return self("capture-pane", "-p")

    def until(self, *words: str) -> None:
        """Wait until it shows words."""
        until = time.monotonic() + _SECONDS
        while not all(word in self.text for word in words):
            assert time.monotonic() < until, self.text
            time.sleep(0.05)

    def run(self, line: str, **environment: str) -> None:
        """Begin `vfioctl` with these words; its exit code and process id are files in the end."""
        setting = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
        program = (
            f"PYTHONPATH={ROOT} XDG_STATE_HOME={self._folder} LC_ALL=C.UTF-8 {setting} {shlex.join(PROGRAM)} {line}"
        )
        script = self._folder / "run.sh"
        script.write_text(
            f"stty -g > {self._folder}/before\necho $$ > {self._folder}/pid\n{program}\ncode=$?\n"
            f"stty -g > {self._folder}/after\necho ended with $code\n"
        )
        self("send-keys", "-l", f"clear; sh {script}")
        self("send-keys", "Enter")

    def kill(self, number: int) -> None:
        """Send a signal to the program."""
        shell = (self._folder / "pid").read_text().strip()
        child = Path(f"/proc/{shell}/task/{shell}/children").read_text().split()[0]
        os.kill(int(child), number)

    def is_as_it_was(self) -> bool:
        """Return whether the settings of the terminal are those before, and its main screen is shown."""
        before, after = ((self._folder / name).read_text() for name in ("before", "after"))
        modes = self("display", "-p", "#{alternate_on}#{mouse_any_flag}#{cursor_flag}#{wrap_flag}").strip()
        return before == after and modes == "0011"


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    terminal = Tmux(tmp_path)
    yield terminal
    terminal("kill-server")


@pytest.fixture
def host(tmp_path: Path) -> Path:
    return Path(shutil.copy(HOSTS / "hgx8.host", tmp_path / "hgx8.host"))


def test_starts_resizes_and_quits(tmux: Tmux, host: Path) -> None:
    tmux.run(f"tui --simulate {host}")
    tmux.until("[1 Devices]", "0000:df:00.0")
    tmux("resize-window", "-x", "130", "-y", "40")
    tmux.until("Identity")
    tmux("send-keys", "Down", "2")
    tmux.until("[2 Claims]", "No claims.")
    tmux("send-keys", "q")
    tmux.until("ended with 0")
    assert tmux.is_as_it_was()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_it_cleanly(tmux: Tmux, host: Path, number: signal.Signals) -> None:
    tmux.run(f"tui --simulate {host}")
    tmux.until("0000:df:00.0")
    tmux.kill(number)
    tmux.until(f"ended with {128 + number}")
    assert tmux.is_as_it_was()
    assert "vfioctl: interrupted" in tmux.text


def test_a_bug_ends_it_cleanly_with_its_traceback(tmux: Tmux, host: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import vfioctl.tui.screens.sheets as sheets\nsheets.sheet_of = None\n", encoding="utf-8"
    )
    tmux.run(f"tui --simulate {host}")  # sitecustomize comes first with the next line
    tmux.until("0000:df:00.0")
    tmux("send-keys", "q")
    tmux.until("ended with 0")
    program = f"import sitecustomize; {PROGRAM[-1]}"
    (tmp_path / "bug.sh").write_text(
        f"stty -g > {tmp_path}/before\n"
        f"export PYTHONPATH={ROOT}:{tmp_path} LC_ALL=C.UTF-8\n"
        f"{sys.executable} -c {shlex.quote(program)} tui --simulate {host}\n"
        f"code=$?\nstty -g > {tmp_path}/after\necho bug $code\n"
    )
    tmux.type(f"clear; sh {tmp_path}/bug.sh")
    tmux.until("bug 1", "TypeError: 'NoneType' object is not callable")
    assert tmux.is_as_it_was()


def test_a_changed_host_is_seen_and_a_change_is_made(tmux: Tmux, host: Path, run: Run) -> None:
    tmux.run(f"tui --simulate {host}")
    tmux.until("0000:df:00.0")
    assert run(f"bind 43:00.0 --yes --simulate {host}").code == 0
    tmux.until("vfio-pci")
    tmux("send-keys", "b")
    tmux.until("[>Cancel<]", "y: apply this plan")
    tmux("send-keys", "y")
    tmux.until("Done: bind 0000:1b:00.0", "[>Close<]")
    tmux("send-keys", "Enter")
    tmux.until("[1 Devices]", "ready")
    tmux("send-keys", "q")
    tmux.until("ended with 0")
    assert run(f"history --simulate {host}").out.count("done") == 2


@pytest.mark.parametrize("term", ["vt100", "linux", "screen", "tmux-256color"])
def test_other_terminals(tmux: Tmux, host: Path, term: str) -> None:
    tmux.run(f"tui --simulate {host}", TERM=term)
    tmux.until("[1 Devices]", "0000:df:00.0")
    tmux("send-keys", "q")
    tmux.until("ended with 0")
    assert tmux.is_as_it_was()


def test_the_examples_of_the_help(tmux: Tmux) -> None:
    epilog = built(places()).load("tui").epilog or ""
    lines = [line.strip().removeprefix("vfioctl ") for line in epilog.splitlines()[1:]]
    assert len(lines) > 2
    for line in lines:
        tmux.run(line)
        tmux.until("[1 Devices]", "UTC")
        tmux("send-keys", "q")
        tmux.until("ended with 0")


@pytest.mark.parametrize(
    ("term", "said"), [("dumb", "TERM=dumb"), ("", "the terminal cannot show screens"), ("unknown", "TERM=unknown")]
)
def test_a_terminal_that_cannot_is_refused(tmux: Tmux, host: Path, term: str, said: str) -> None:
    tmux.run(f"tui --simulate {host}", TERM=term)
    tmux.until("ended with 2", said, "vfioctl watch")


def test_without_a_terminal_it_names_watch(run: Run) -> None:
    answer = run("tui --simulate hgx8")
    assert answer.code == 2
    assert "vfioctl watch" in answer.err
    assert answer.out == ""


def test_without_textual_one_line_says_how_to_get_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vfioctl.tui.cli.tui.refuse_terminal", lambda: None)
    monkeypatch.setattr("vfioctl.tui.cli.tui.find_spec", lambda _: None)
    answer = run("tui --simulate hgx8")
    assert answer.code == 3
    assert "pip install 'vfioctl[tui]'" in answer.err


@pytest.mark.parametrize("option", ["-v", "--log-level debug"])
def test_a_log_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    monkeypatch.setattr("vfioctl.tui.cli.tui.refuse_terminal", lambda: None)
    assert run(f"tui {option} --simulate hgx8").code == 2


@pytest.mark.parametrize("seconds", ["0", "0.1", "1e9", "nan", "x"])
def test_the_interval_has_limits(run: Run, seconds: str) -> None:
    assert run(f"tui --interval {seconds} --simulate hgx8").code == 2
