"""Several processes at once for one group: one wins, the others are told, nothing is half done."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hosts.machines import HOSTS, copy, machine, original, state
from vfioctl.core.change import JournalState
from vfioctl.host import Host
from vfioctl.kernel.recorded.host import read_tree

CONTENDER = """
import json, sys
from pathlib import Path
from vfioctl.errors import VfioctlError
from vfioctl.host import Host
host = Host.simulated(sys.argv[1])
plan = getattr(host.binding, sys.argv[2])([sys.argv[3]])
print("ready", flush=True)
sys.stdin.readline()
try:
    print(json.dumps(["done", host.apply(plan).result]))
except VfioctlError as error:
    print(json.dumps([type(error).__name__, error.exit_code]))
"""


def race(file: Path, *entries: tuple[str, str]) -> list[list[object]]:
    """What became of each: its plan is made before any of them is carried out."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", CONTENDER, str(file), job, device],
            cwd=HOSTS.parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for job, device in entries
    ]
    for process in processes:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    return [json.loads(process.communicate(timeout=60)[0]) for process in processes]


@pytest.fixture
def file(fast_folder: Path) -> Path:
    file = fast_folder / "raced.host"
    file.write_text((HOSTS / "workstation.host").read_text(encoding="utf-8"), encoding="utf-8")
    return file


def bound(device: str, fast_folder: Path) -> object:
    """How the host is when that bind has been done."""
    tree = copy(original("workstation"))
    host = machine(tree, fast_folder / "alone.db")
    host.apply(host.binding.plan_bind([device]))
    return state(tree)


@pytest.mark.parametrize("number", [2, 4])
def test_of_those_who_bind_one_device_one_wins(file: Path, fast_folder: Path, number: int) -> None:
    answers = race(file, *[("plan_bind", "0b:00.0")] * number)
    assert sorted(answers, key=str) == sorted([["done", "done"], *[["done", "nothing to do"]] * (number - 1)], key=str)
    assert state(read_tree(file)) == bound("0b:00.0", fast_folder)
    assert [entry.state for entry in Host.simulated(str(file)).history()] == [JournalState.DONE]


def test_of_those_who_bind_different_functions_of_a_card_one_wins(file: Path, fast_folder: Path) -> None:
    answers = race(file, *(("plan_bind", f"0b:00.{number}") for number in range(4)))
    assert sorted(answers, key=str) == [["done", "done"], *[["done", "nothing to do"]] * 3]
    assert state(read_tree(file)) == bound("0b:00.0", fast_folder)


def test_those_who_bind_different_cards_all_win(file: Path) -> None:
    answers = race(file, ("plan_bind", "0b:00.0"), ("plan_bind", "05:00.0"))
    assert answers == [["done", "done"]] * 2
    host = Host.simulated(str(file))
    assert {host.inventory().by_address[a].driver for a in host.find(["0b:00.0", "05:00.0"])} == {"vfio-pci"}
    assert len(host.history()) == 2


def test_of_those_who_give_one_device_back_one_wins(file: Path) -> None:
    host = Host.simulated(str(file))
    host.apply(host.binding.plan_bind(["0b:00.0"]))
    answers = race(file, *[("plan_unbind", "0b:00.0")] * 3)
    assert sorted(answers, key=str) == [["done", "done"], *[["done", "nothing to do"]] * 2]
    assert state(read_tree(file)) == state(original("workstation"))
