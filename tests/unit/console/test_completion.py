"""What Tab offers in bash, zsh and fish, as their completion scripts ask the program."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer._completion_shared import get_completion_script

from tests.hosts.machines import HOSTS
from tests.unit.conftest import Run
from vfioctl.console.completion import SCRIPTS

ROOT = HOSTS.parents[1]
Ask = Callable[[str, str], list[str]]


def asked_by(shell: str, line: str) -> dict[str, str]:
    """The variables by which a shell asks for the last word of a line."""
    if shell == "bash":
        return {"_VFIOCTL_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    asked = {"_VFIOCTL_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": line}
    return asked | {"_TYPER_COMPLETE_FISH_ACTION": "get-args"} if shell == "fish" else asked


def words_of(shell: str, answer: str) -> list[str]:
    """The words that a shell takes from an answer."""
    if shell == "zsh":
        return [word.replace("\\", "") for word in re.findall(r'"((?:[^"\\]|\\.)*)":"', answer)]
    return [line.split("\t")[0] for line in answer.splitlines() if line]


@pytest.fixture
def ask(tmp_path: Path, run: Run) -> Ask:
    """Asks on a host with claims of two owners."""
    file = tmp_path / "hgx8.host"
    file.write_text((HOSTS / "hgx8.host").read_text())
    for owner, gpu in (("vm/web1", "gpu0"), ("vm/web1", "gpu1"), ("user/ada", "gpu2")):
        assert run(f"claim create --owner {owner} --device {gpu} --yes --simulate {file}").code == 0

    def ask(shell: str, words: str) -> list[str]:
        line = f"vfioctl {words}"
        environment = {**os.environ, **asked_by(shell, line), "VFIOCTL_SIMULATE": str(file)}
        done = subprocess.run(
            [sys.executable, "-m", "vfioctl.app"],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stderr == ""
        return words_of(shell, done.stdout)

    return ask


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
class TestEachShell:
    def test_devices(self, ask: Ask, shell: str) -> None:
        assert "gpu3" in ask(shell, "bind gpu")

    def test_owners(self, ask: Ask, shell: str) -> None:
        assert ask(shell, "claim list --owner ") == ["user/ada", "vm/web1"]
        assert ask(shell, "claim create --owner vm/") == ["vm/web1"]
        assert ask(shell, "place --owner u") == ["user/ada"]
        assert ask(shell, "claim transfer x --to vm/w") == ["vm/web1"]

    def test_claims(self, ask: Ask, shell: str) -> None:
        assert len(ask(shell, "claim show ")) == 3

    def test_nothing_that_does_not_begin_so(self, ask: Ask, shell: str) -> None:
        assert ask(shell, "claim list --owner pod/") == []


@pytest.mark.parametrize("shell", SCRIPTS)
def test_an_installed_script_is_the_one_that_typer_shows(shell: str) -> None:
    assert SCRIPTS[shell] == get_completion_script(prog_name="vfioctl", complete_var="_VFIOCTL_COMPLETE", shell=shell)


def test_bash_takes_the_installed_script(tmp_path: Path) -> None:
    script = tmp_path / "vfioctl"
    script.write_text(SCRIPTS["bash"])
    done = subprocess.run(
        ["bash", "-c", f"source {script} && complete -p vfioctl"], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "complete -o default -F _vfioctl_completion vfioctl", done.stderr
