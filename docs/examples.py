"""The examples in the documents: found, run in a world of their own, compared, renewed.

A ```console block is a shell session: lines that start with `$ ` are run, by one bash for the whole block, in a folder
that all blocks of the document share. What is shown below a command must be what it prints; `...` stands for any text,
and alone on a line for any lines. Nothing shown means: only that it succeeds. A ```python block is run as it stands.

    python -m docs.examples        renews what the documents show, where it is no longer true; `...` as all that is
                                   shown below a command is filled in
"""

from __future__ import annotations

import os
import pty
import pwd
import re
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Timer

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 60
_FENCE = re.compile(r"^```(\w*)$(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = "\x1e"
_TO_FILL_IN = ("...",)
_VOLATILE = re.compile(
    r"(?<=, )[0-9.]+(?= s\))|\b20\d\d-\d\d-\d\d \d\d:\d\d:\d\d|(?<=since )[0-9:]{8}(?= UTC)|(?<=up to )\d+(?= s:)"
)
"""Durations and times: no two runs print the same."""

# What a reader does for real, and an example must not: make would run the tests that run this.
_STAND_INS = {
    "make": f'exec /usr/bin/make --directory "{ROOT}" --dry-run "$@" > /dev/null',
    "sudo": 'exec "$@"',
}


@dataclass(frozen=True)
class Command:
    text: str
    shown: tuple[str, ...]

    @property
    def may_fail(self) -> bool:
        return any(line.startswith("vfioctl: ") for line in self.shown)


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, its content, and the line of the document it starts at."""

    language: str
    content: str
    line: int

    @property
    def commands(self) -> tuple[Command, ...]:
        parts = re.split(r"^\$ ", self.content.strip("\n"), flags=re.MULTILINE)[1:]
        return tuple(_command(part) for part in parts)


@dataclass(frozen=True)
class Answer:
    status: int
    lines: tuple[str, ...]


def documents() -> list[Path]:
    return [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("bench/*.md"))]


def blocks(document: Path) -> list[Block]:
    text = document.read_text()
    found = _FENCE.finditer(text)
    return [Block(match[1], match[2], text.count("\n", 0, match.start()) + 1) for match in found]


def matches(shown: Sequence[str], lines: Sequence[str]) -> bool:
    """Whether the lines are what is shown, durations, times of day and the user aside."""
    pattern = "".join(r"(?:.*\n)*?" if line == "..." else _line_pattern(line) for line in shown)
    return re.fullmatch(pattern, "".join(f"{_settled(line)}\n" for line in lines)) is not None


def _line_pattern(line: str) -> str:
    return ".*?".join(map(re.escape, _settled(line).split("..."))) + r"\n"


def _settled(line: str) -> str:
    """With times made equal, as root would see it; the width of a column depends on the user's name."""
    user = pwd.getpwuid(os.getuid()).pw_name
    return re.sub(" {2,}", "  ", re.sub(rf"\b{re.escape(user)}\b", "root", _VOLATILE.sub("0", line)))


class World:
    """An empty folder with nothing of the reader's own around it: no ledger, no state, no real devices asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "work"
        self.folder.mkdir()
        (folder / "bin").mkdir()
        for name, script in _STAND_INS.items():
            stand_in = folder / "bin" / name
            stand_in.write_text(f"#!/bin/sh\n{script}\n")
            stand_in.chmod(0o755)
        # a short name: what is printed of command lines would wrap elsewhere in a checkout with a longer path
        (folder / "bin/vfioctl").symlink_to(Path(sys.executable).with_name("vfioctl"))
        path = (folder / "bin", Path(sys.executable).parent, "/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin")
        self._environment = {
            "PATH": ":".join(map(str, path)),
            "PYTHONPATH": str(ROOT),  # this checkout's, whichever is installed
            "HOME": str(folder),
            "XDG_STATE_HOME": str(folder / "state"),
            "COLUMNS": "80",
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
            "NO_COLOR": "1",
            "TERM": "dumb",
        }

    def run(self, block: Block) -> list[Answer]:
        """What each command of a console block answers."""
        ends = f"\nprintf '\\n{_MARK}%d{_MARK}\\n' $?\n"
        script = "exec 2>&1\n" + "".join(command.text + ends for command in block.commands)
        *parts, rest = self._on_a_terminal(["bash", "-c", script]).split(_MARK)
        answers = [_answer(text, status) for text, status in zip(parts[::2], parts[1::2], strict=True)]
        # a command that the shell could not parse ends the session
        return answers + [_answer(rest, "255")] * (len(block.commands) - len(answers))

    def execute(self, block: Block) -> Answer:
        """A python block: a session with `>>>`, or a program."""
        if ">>>" in block.content:
            (self.folder / "session.txt").write_text(block.content)
            done = self._started([sys.executable, "-m", "doctest", "-o", "ELLIPSIS", "session.txt"])
        else:
            done = self._started([sys.executable, "-c", block.content])
        return Answer(done.returncode, tuple((done.stdout + done.stderr).splitlines()))

    def _on_a_terminal(self, command: Sequence[str]) -> str:
        """What a command writes to a terminal of 80 columns: the documents show what a reader sees."""
        ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (24, 80))
        settings = termios.tcgetattr(theirs)
        settings[1] &= ~termios.OPOST  # no carriage returns
        termios.tcsetattr(theirs, termios.TCSANOW, settings)
        with subprocess.Popen(
            command, cwd=self.folder, env=self._environment, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs
        ) as child:
            os.close(theirs)
            timer = Timer(SECONDS, child.kill)
            timer.start()
            text = b"".join(_parts(ours))
            timer.cancel()
        os.close(ours)
        return text.decode()

    def _started(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self._environment,
            timeout=SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )


def _parts(terminal: int) -> Iterator[bytes]:
    with suppress(OSError):  # EIO: all writers have closed their end
        while part := os.read(terminal, 65536):
            yield part


def _command(part: str) -> Command:
    lines = part.rstrip("\n").split("\n")
    length = next(index for index, line in enumerate(lines) if not line.endswith("\\")) + 1
    return Command("\n".join(lines[:length]), tuple(line.rstrip() for line in lines[length:]))


def _answer(text: str, status: str) -> Answer:
    text = text.removeprefix("\n").removesuffix("\n").removesuffix("\n")
    return Answer(int(status), tuple(line.rstrip() for line in text.split("\n")) if text else ())


def wrong(document: Path) -> Iterator[tuple[Block, Command | None, Answer]]:
    """The examples of a document that do not hold, run in order in one world."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        world = World(Path(folder))
        for block in blocks(document):
            if block.language == "python":
                answer = world.execute(block)
                if answer.status:
                    yield block, None, answer
            elif block.language == "console":
                for command, answer in zip(block.commands, world.run(block), strict=True):
                    failed = answer.status != 0 and not command.may_fail
                    false = command.shown == _TO_FILL_IN or not matches(command.shown, answer.lines)
                    if failed or (command.shown and false):
                        yield block, command, answer


def renew(document: Path) -> int:
    """Writes what the commands print in the place of what is shown and no longer true; how many examples fail."""
    text = document.read_text()
    failures = 0
    for block, command, answer in wrong(document):
        name = f"{os.path.relpath(document)}:{block.line}"
        if command is None or not command.shown or (answer.status and not command.may_fail):
            failures += 1
            sys.stderr.write("\n".join((f"{name}: failed", *answer.lines, "")))
            continue
        old, new = ("\n".join((f"$ {command.text}", *lines)) for lines in (command.shown, answer.lines))
        text = text.replace(f"{old}\n", f"{new}\n", 1)
        sys.stdout.write(f"{name}: renewed: {command.text}\n")
    document.write_text(text)
    return failures


if __name__ == "__main__":
    sys.exit(sum(renew(path) for path in [Path(name).resolve() for name in sys.argv[1:]] or documents()) > 0)
