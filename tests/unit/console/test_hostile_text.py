"""Text of a host never controls the terminal: names and values with control characters, in every place that has text.

Every listing, dry run and snapshot, as text and as JSON, in a pipe and on a terminal.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hosts.machines import copy, original, written
from tests.unit.conftest import ROOT, Run
from vfioctl.console.failure import report_bug
from vfioctl.console.words import json_text, plain
from vfioctl.kernel.recorded.tree import Tree, form

HOSTILE = (
    "\x1b[2J\x1b[1;1H",
    "\x9b31m",
    "\x07\r\x08",
    "one\ntwo",
    "\u202emoc.\u2066",
    "\x7f\x00",
    "[bold red]x[/]",
    "\u2028",
)
"""CSI in both forms, bell, carriage return, new line, bidirectional controls, DEL and NUL, markup, line separator."""
UNNAMEABLE = "\x00/"
COMMANDS = (
    "inventory",
    "inventory --all",
    "inventory --tree --all",
    "show gpu0",
    "show gpu1",
    "holders gpu0",
    "vgpu types",
    "vgpu list",
    "history",
    "bind gpu0 --dry-run --with-group --allow-boot-vga",
    "bind gpu1 --dry-run --with-group --allow-boot-vga",
    "reset gpu0 --dry-run",
    "snapshot",
    "-v inventory --all",
    "--log-level debug show gpu0",
)


class Spoiler:
    """Puts hostile text into a tree, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def text(self, text: str) -> str:
        at = self._random.randrange(len(text) + 1)
        return text[:at] + self._random.choice(HOSTILE) + text[at:]

    def name(self, text: str) -> str:
        return "".join(c for c in self.text(text) if c not in UNNAMEABLE)

    def spoiled(self, tree: Tree) -> Tree:
        """A tree with a tenth of its texts spoiled, and devices, drivers, groups and nodes with hostile names added."""
        found = Tree()
        renamed = {name: self.name(name) for name in self._drivers(tree) if self._random.random() < 0.5}
        for path in tree.directories:
            found.put_directory(self._moved(path, renamed))
        for path, text in tree.files.items():
            spoil = self._random.random() < 0.1 and not path.endswith(("/config", "/class"))
            found.put(self._moved(path, renamed), self.text(text) if spoil else text)
        for path, target in tree.links.items():
            found.put_link(self._moved(path, renamed), self._moved(target, renamed))
        found.properties = {
            subject: {key: self.text(value) if self._random.random() < 0.5 else value for key, value in facts.items()}
            for subject, facts in tree.properties.items()
        }
        for place in (
            "/sys/bus/pci/devices",
            "/sys/bus/mdev/devices",
            "/sys/kernel/iommu_groups",
            "/proc",
            "/dev/vfio",
        ):
            found.put_directory(f"{place}/{self.name('0000:01:00.0')}")
        found.put_directory(f"/sys/devices/system/node/{self.name('node0')}")
        return found

    def _drivers(self, tree: Tree) -> list[str]:
        return sorted(tree.directories.get("/sys/bus/pci/drivers", ()))

    @staticmethod
    def _moved(path: str, renamed: dict[str, str]) -> str:
        head, _, driver = path.rpartition("/")
        return f"{head}/{renamed[driver]}" if head.endswith("/drivers") and driver in renamed else path


@pytest.fixture(params=[("busy", 0), ("busy", 1), ("a2", 2), ("l40s", 3)], ids=str)
def captured(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A captured directory full of hostile text."""
    host, seed = request.param
    return written(Spoiler(seed).spoiled(original(host)), tmp_path / "root")


def raw(text: str) -> list[str]:
    """The lines with a character that a terminal may obey."""
    return [line[:200] for line in text.split("\n") if not line.isprintable()]


def test_of_a_captured_directory(run: Run, terminal: Run, captured: Path) -> None:
    for command in COMMANDS:
        for each in (run, terminal):
            answer = each(f"{command} --root {captured}")
            assert not raw(answer.out), command
            assert not raw(answer.err), command
        if "snapshot" not in command and "--tree" not in command:
            answer = run(f"{command} --root {captured} --json")
            assert not raw(answer.out + answer.err), command
            assert json.loads(answer.out)


@pytest.mark.parametrize(("host", "seed"), [("busy", 0), ("l40s", 1)])
def test_of_a_host_file(run: Run, tmp_path: Path, host: str, seed: int) -> None:
    """These have also the names of processes, users and units, and what libraries say."""
    spoiler, tree = Spoiler(seed), copy(original(host))
    tree.files = {
        path: spoiler.text(text) if path.endswith(("comm", "status", "cgroup")) else text
        for path, text in tree.files.items()
    }
    tree.properties = {
        of: {key: spoiler.text(text) for key, text in facts.items()} for of, facts in tree.properties.items()
    }
    file = tmp_path / "hostile.host"
    file.write_text(form(tree), encoding="utf-8")
    for command in COMMANDS:
        answer = run(f"{command} --host {file}")
        assert not raw(answer.out + answer.err), command


def test_of_file_names_that_a_snapshot_cannot_hold(run: Run, tmp_path: Path) -> None:
    root = written(original("laptop"), tmp_path / "root")
    (root / "sys/bus/pci/drivers/evil\x1b]0;title\x07\nnot read: nothing").mkdir()
    answer = run(f"snapshot --root {root}")
    assert answer.code == 0
    assert "not read: /sys/bus/pci/drivers/evil\\x1b]0;title\\x07\\nnot read: nothing" in answer.err
    assert not raw(answer.err)


@pytest.mark.parametrize("name", ["\x1b[2J.host", "a\nb", "\u202egnp.host", "[red]x[/red]"])
def test_of_the_command_line(run: Run, name: str) -> None:
    for line in ("show", "inventory --host", "apply", "vgpu show", "no-such-command"):
        answer = run(line, name)
        assert answer.code == 2
        assert not raw(answer.out + answer.err)
    assert plain(name) in run("inventory --host", name).err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_of_completion_is_nothing_that_a_shell_evaluates(tmp_path: Path, shell: str) -> None:
    """zsh evaluates the answer; names of a host reach it as values and as descriptions."""
    tree = copy(original("laptop"))
    evil = iter(("$(touch x)", "\\$(touch x)", "`touch x`", "a;touch x", "'x'", '"x"', "[/red]", "\x1b[2J", "*"))
    for path, target in [*tree.links.items()]:
        if path.endswith("/driver") and (name := next(evil, "")):
            tree.put_link(path, f"{target.rpartition('/')[0]}/{name}")
    tree.properties = {of: dict.fromkeys(facts, "\\$(touch x)\x1b[2J [/x]") for of, facts in tree.properties.items()}
    file = tmp_path / "evil.host"
    file.write_text(form(tree), encoding="utf-8")
    for words, wanted in ((f"inventory --host {file} --driver ", "vfio-pci"), (f"bind --host {file} g", "gpu0")):
        told = completed(shell, f"vfioctl {words}")
        assert wanted in told
        assert not [mark for mark in ("$(", "`", ";touch", "[/", "'x", "\x1b", '"*') if mark in told], told


def completed(shell: str, words: str) -> str:
    environment = {"_VFIOCTL_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": words, "PYTHONPATH": str(ROOT)}
    environment |= {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" ")), "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    program = [sys.executable, "-c", "from vfioctl.app import console; console()"]
    return subprocess.run(program, env=environment, capture_output=True, text=True, check=True).stdout


def test_of_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise ValueError("\x1b[2J\u202e\x9b31m\nsecond line")
    except ValueError as error:
        report_bug(type(error), error, error.__traceback__)
    told = capsys.readouterr().err
    assert r"ValueError: \x1b[2J\u202e\x9b31m" in told
    assert told.startswith("Traceback")
    assert not raw(told)


class TestEscaping:
    def test_is_readable(self) -> None:
        assert plain("a\x1b[0m\n\t\x9b\u202e\U000e0001\x00") == r"a\x1b[0m\n\t\x9b\u202e\U000e0001\x00"
        assert plain("Größe 図形 [bold]") == "Größe 図形 [bold]"

    def test_keeps_the_values_of_json(self) -> None:
        document = {"a\x9b": ["\x7f\u202e\U000e0001 é", "\x1b"]}
        text = json_text(json.dumps(document, ensure_ascii=False))
        assert text == r'{"a\u009b": ["\u007f\u202e\udb40\udc01 é", "\u001b"]}'
        assert json.loads(text) == document

    @pytest.mark.parametrize("character", [*map(chr, range(0x7F, 0xA0)), *"\u061c\u200e\u200f\u2028\u2029\ufeff"])
    def test_covers_c1_and_what_turns_text_round(self, character: str) -> None:
        for each in (character, *map(chr, (*range(0x202A, 0x202F), *range(0x2066, 0x206A)))):
            assert not raw(plain(each))
            assert json_text(f'"{each}"') == f'"\\u{ord(each):04x}"'
