"""The next command that a golden conflict prints is not refused on the same host in the same state."""

from __future__ import annotations

import os
import re
import shutil
from itertools import count
from pathlib import Path

import pytest

from tests.unit.conftest import GOLDEN, Run

_CONFLICT = re.compile(r"^(?:\$ vfioctl (?P<line>.+)\n(?P<said>(?:(?!\$ ).*\n)*?)\[exit code 4\]$)", re.MULTILINE)
_REFUSAL = re.compile(r"^exit 4\n((?:(?!exit ).*\n)*)", re.MULTILINE)
_NEXT = re.compile(r"^ *next: +vfioctl (.+)$", re.MULTILINE)


def conflicts(file: Path) -> list[str]:
    """Return what each conflict in a golden file says with a next command."""
    text = file.read_text(encoding="utf-8")
    said = [match["said"] for match in _CONFLICT.finditer(text)] + _REFUSAL.findall(text)
    if file.name == "bind.txt":
        said.append(text)
    return [part for part in said if _NEXT.search(part)]


FILES = sorted(str(file.relative_to(GOLDEN)) for file in GOLDEN.rglob("*.txt") if conflicts(file))


def test_there_are_some() -> None:
    assert {"claims/session.txt", "domains/start.txt", "busy/refusals.txt", "xe/vgpu-changes.txt"} <= {*FILES}


@pytest.mark.parametrize("name", FILES)
def test_a_golden_conflict_names_a_command_that_is_not_refused(
    run: Run, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = GOLDEN / name
    text = file.read_text(encoding="utf-8")
    lines = re.findall(r"^\$ vfioctl (.+)$", text, re.MULTILINE)
    if not lines:  # on a recorded host, one after the other
        for remedy in _NEXT.findall("".join(conflicts(file))):
            assert run(remedy).code == 0, remedy
    elif file.parent.name == "domains":  # the session goes on with it
        for said in conflicts(file):
            verbs = _NEXT.findall(said)[0].partition(" --connect")[0]
            later = text[text.index(said) :]
            assert re.search(rf"^\$ vfioctl {verbs}\b.*\n(?:(?!\$ ).*\n)*?\[exit code 0\]$", later, re.MULTILINE), verbs
    else:
        replay(run, lines, "hgx8" if file.parent.name == "claims" else file.parent.name, monkeypatch)


def replay(run: Run, lines: list[str], host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a session again; at each conflict also its next command, which is undone."""
    numbers = count(1)
    monkeypatch.setattr("vfioctl.claims.ledger.ledger._unused_id", lambda _: f"1a2b3c{next(numbers):02x}")
    state = Path(os.environ["XDG_STATE_HOME"])
    tried = 0
    for line in lines:
        answer = run(f"{line} --simulate {host}")
        for remedy in _NEXT.findall(answer.err) if answer.code == 4 else ():
            before = state.with_name("before")
            shutil.copytree(state, before)
            assert run(remedy).code == 0, remedy
            shutil.rmtree(state)
            before.rename(state)
            tried += 1
    assert tried


class TestAClaim:
    """What is refused for a claim names what ends the claim."""

    def test_of_vgpus_on_a_parent(self, run: Run) -> None:
        claim = run("claim create --owner vm/v --vgpu T4-4C=2 --yes --json --simulate t4").document["id"]
        for line in ("bind gpu0", "reset gpu0", "claim create --owner vm/w --device gpu0"):
            error = run(f"{line} --json --simulate t4").document["error"]
            assert error["kind"] == "ClaimConflict", line
            remedy = error["next_command"]
            assert remedy == f"vfioctl claim release {claim} --simulate t4", line
        assert run(remedy.removeprefix("vfioctl ")).code == 0
        assert run("bind gpu0 --simulate t4").code == 0

    def test_for_a_run_of_a_domain(self, run: Run) -> None:
        uri = "qemu:///system"
        run(f"claim create --owner vm/web1 --device gpu0 --cpus 2 --label libvirt={uri} --yes --simulate hgx8")
        for line in (
            "unbind gpu0",
            "claim create --owner vm/b --device gpu0",
            "claim adopt --owner vm/b --device gpu0",
        ):
            error = run(f"{line} --json --simulate hgx8").document["error"]
            assert (error["kind"], error["exit_code"]) == ("ClaimConflict", 4), line
            assert error["next_command"] == f"vfioctl domain stop web1 --connect {uri} --simulate hgx8", line

    def test_of_vgpus_that_a_reboot_removed_leaves_their_room_taken(self, run: Run) -> None:
        def free() -> dict[str, int]:
            (card,) = run("vgpu types --json --simulate t4").document["cards"]
            return {kind["profile"]: kind["available"]["at_most"] for kind in card["types"]}

        at_first = free()
        claim = run("claim create --owner vm/v --vgpu T4-4C=2 --yes --json --simulate t4").document["id"]
        assert run("hosts reboot t4").code == 0
        assert (at_first["T4-4C"], free()["T4-4C"]) == (4, 2)
        assert run(f"claim release {claim} --yes --simulate t4").code == 0
        assert free() == at_first

    def test_for_kata_after_a_reboot(self, run: Run) -> None:
        claim = run("claim create --owner pod/a/b/c --device gpu0 --yes --json --simulate hgx8").document["id"]
        assert run("hosts reboot hgx8").code == 0
        answer = run(f"kata check --claim {claim} --simulate hgx8")
        assert "vfioctl reconcile --fix" in answer.out
        assert "vfioctl bind" not in answer.out
        assert run("reconcile --fix --yes --simulate hgx8").code == 0
        assert "vfioctl reconcile --fix" not in run(f"kata check --claim {claim} --simulate hgx8").out
