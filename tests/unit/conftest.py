"""The command line as tests call it, and the golden files that its listings are compared with."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.hosts.machines import copy
from tests.schema import command_of, problems_of
from vfioctl.app import main
from vfioctl.domain.model.hook import SCRIPT
from vfioctl.errors import BadDocument
from vfioctl.kernel.recorded import host as recorded
from vfioctl.kernel.recorded import tree as recorded_tree
from vfioctl.kernel.recorded.tree import Tree, parse
from vfioctl.session import LEDGER

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).resolve().parents[1] / "golden"
PROGRAM = (sys.executable, "-c", "import sys; from vfioctl.app import main; sys.exit(main())")
"""The command line as a process."""
_EXIT_CODES = Path(__file__).resolve().parents[2] / "docs/reference/exit-codes.md"
FAILURES = {int(code) for code in re.findall(r"^\| (\d+) \|", _EXIT_CODES.read_text(encoding="utf-8"), re.MULTILINE)}
"""The documented exit codes of failures."""
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
"""Characters other than a newline that a terminal acts on: C0, DEL, C1."""


def program_in(folder: Path) -> None:
    """Write the program `vfioctl` into a folder. Where a command line names no host, it takes a simulated one: examples
    of the help are run as they stand, and may not change this machine."""
    program = folder / "vfioctl"
    settings = f"VFIOCTL_SIMULATE=hgx8 PYTHONPATH={shlex.quote(str(ROOT))}"
    program.write_text(f'#!/bin/sh\n{settings} exec {shlex.join(PROGRAM)} "$@"\n')
    program.chmod(0o755)


class Answer(NamedTuple):
    """What a command line came to."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON object on stdout."""
        return json.loads(self.out)


Run = Callable[..., Answer]
Golden = Callable[[str, str], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--renew-golden", action="store_true", help="write the golden files instead of comparing them")


@pytest.fixture(scope="session", autouse=True)
def this_machine_stays_as_it_is() -> Iterator[None]:
    """No test writes where commands write on a live host."""

    def times() -> list[int]:
        return [place.stat().st_mtime_ns if place.exists() else 0 for place in (LEDGER.parent, LEDGER, Path(SCRIPT))]

    before = times()
    yield
    assert times() == before, f"a test has used {LEDGER} or {SCRIPT}"


@pytest.fixture(scope="session", autouse=True)
def state_of_this_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fixtures that outlive a test use no simulated host of the developer's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True)
def quiet_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No setting of the developer's own reaches a test, and nothing a test does reaches the developer's files."""
    for name in ("ROOT", "HOST", "SIMULATE", "LEDGER", "FAULTS", "CONNECT"):
        monkeypatch.delenv(f"VFIOCTL_{name}", raising=False)
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("SUDO_USER", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 0)  # who made a change is the same on every machine


@pytest.fixture(scope="session", autouse=True)
def each_host_is_parsed_once() -> Iterator[None]:
    """Each command parses its simulated host anew; thousands of commands have the same few, or differ in few lines."""

    @lru_cache(maxsize=32)
    def tree_of(text: str) -> Tree:
        return parse(text, "")

    def parse_once(text: str, source: str) -> Tree:
        try:
            return copy(tree_of(text))
        except BadDocument:
            return parse(text, source)  # raises it with the name of the file

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorded, "parse", parse_once)
        patch.setattr(recorded_tree, "_parts", lru_cache(maxsize=1 << 16)(recorded_tree._parts))
        yield


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs one command line in this process; a string is split at spaces. What --json prints must be as its schema."""

    def run_words(line: str, *more: str) -> Answer:
        words = [*line.split(), *more]
        answer = Answer(main(words), *capsys.readouterr())
        command = command_of(words)
        if command and "--json" in words and "--help" not in words and answer.out.startswith("{"):
            problems = problems_of(answer.document, command)
            assert not problems, f"vfioctl {' '.join(words)}: not as the schemas of {command}: {problems[:5]}"
        return answer

    return run_words


@pytest.fixture
def terminal(run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Like `run`, with stdout a terminal of COLUMNS columns that knows no colours."""
    monkeypatch.setenv("TERM", "dumb")

    def run_words(line: str, *more: str) -> Answer:
        with monkeypatch.context() as patch:
            patch.setattr(sys.stdout, "isatty", lambda: True)
            answer = run(line, *more)
        return answer._replace(out="".join(f"{part.rstrip()}\n" for part in answer.out.splitlines()))

    return run_words


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compares a text with a golden file, or writes it with --renew-golden."""

    def compare(name: str, text: str) -> None:
        file = GOLDEN / name
        if request.config.getoption("--renew-golden"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        assert file.is_file(), f"no {file}: pytest --renew-golden"
        assert text == file.read_text(encoding="utf-8"), "if that is meant: pytest --renew-golden"

    return compare


def timeless(text: str) -> str:
    """With clock times, durations, users and their processes made equal."""
    text = re.sub(r'("user"|"command"): ".*"', r'\1: "..."', re.sub(r'("pid":|process) \d+', r"\1 1", text))
    text = re.sub(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?(\+00:00)?", "2026-01-01 00:00:00", text)
    return re.sub(r"\b\d+\.\d+ s\b", "0.00 s", re.sub(r'"seconds": [0-9.e-]+', '"seconds": 0.0', text))


@contextmanager
def running(program: Sequence[str], **settings: Any) -> Iterator[subprocess.Popen[Any]]:
    """A program, with the settings of `subprocess.Popen`. It is killed in the end: after a test has failed,
    one that goes on would be waited for without end."""
    with subprocess.Popen(program, **settings) as process:
        try:
            yield process
        finally:
            process.kill()


def until_closed(terminal: int) -> bytes:
    """What is written to a pseudoterminal until no program has its other end open."""
    written = b""
    with suppress(OSError):  # EIO, as Linux reports the end
        while part := os.read(terminal, 65536):
            written += part
    return written


def answered(program: Sequence[str], answer: str) -> tuple[int, str, str]:
    """Run a program and answer its question. Exit code, stdout, and what the terminal (stdin and stderr) showed.
    Without the line that says that it is still working, which comes on a busy machine only."""
    ours, theirs = pty.openpty()
    with running(program, cwd=ROOT, stdin=theirs, stderr=theirs, stdout=subprocess.PIPE, text=True) as child:
        os.close(theirs)
        os.write(ours, answer.encode())
        shown = until_closed(ours)
        assert child.stdout is not None
        out = child.stdout.read()
        code = child.wait()
    os.close(ours)
    return code, out, re.sub(r"\r\x1b\[K(?:[^\r\n]*(?=\r\x1b\[K))?", "", shown.decode())
