"""Recordings of real machines: each listing has an answer on each of them, and none tells what is private."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.hosts.machines import HOSTS
from tests.unit.conftest import Answer, Run
from vfioctl.host import Host
from vfioctl.inventory.model.functions import Inventory
from vfioctl.kernel.recorded.bundled import bundled_hosts
from vfioctl.kernel.recorded.host import read_tree
from vfioctl.kernel.recorded.tree import form

FOLDER = HOSTS / "recorded"
LAB = HOSTS / "lab.host"
RECORDINGS = [*sorted(FOLDER.glob("*.host")), LAB]

DOCUMENTED = (HOSTS.parents[1] / "docs/reference/exit-codes.md").read_text(encoding="utf-8")
FAILURES = {int(code) for code in re.findall(r"^\| (\d+) \|", DOCUMENTED, re.MULTILINE)}
# What another letter than a line's end would do to a terminal: C0, DEL, C1.
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
LISTINGS = ("inventory", "inventory --all", "inventory --tree", "inventory --tree --all", "vgpu types", "vgpu list")

each_recording = pytest.mark.parametrize("file", RECORDINGS, ids=lambda file: file.stem)


def answered(run: Run, file: Path, line: str) -> Answer:
    """What a command says of the recording, fit for a terminal. An exception that is no failure ends the test."""
    answer = run(f"{line} --host {file}")
    assert answer.code in {0, *FAILURES}, line
    assert not CONTROL.search(answer.out + answer.err), line
    return answer


def inventory(file: Path) -> Inventory:
    return Host.recorded(str(file)).inventory()


def test_there_are_some() -> None:
    assert len(RECORDINGS) > 1
    assert {2, 3, 4, 5, 6, 7} <= FAILURES


@each_recording
@pytest.mark.parametrize("line", LISTINGS)
def test_it_is_listed(run: Run, file: Path, line: str) -> None:
    shown = answered(run, file, line)
    assert shown.code == 0, shown.err
    assert shown.out.strip()
    document = answered(run, file, f"{line} --json") if "--tree" not in line else None
    assert document is None or isinstance(json.loads(document.out), dict)


@each_recording
def test_all_its_functions_are_in_the_inventory(run: Run, file: Path) -> None:
    listed = answered(run, file, "inventory --all --json").document
    there = read_tree(file).directories["/sys/bus/pci/devices"]
    assert {function["address"] for function in listed["functions"]} == set(there)


@each_recording
def test_each_function_is_shown(run: Run, file: Path) -> None:
    for address in inventory(file).by_address:
        assert answered(run, file, f"show {address}").code == 0, address
        assert answered(run, file, f"show {address} --json").document, address


@each_recording
def test_of_each_gpu_the_holders_are_listed(run: Run, file: Path) -> None:
    for gpu in inventory(file).gpus:
        assert answered(run, file, f"holders {gpu.address}").code == 0, gpu.address
        assert "holders" in answered(run, file, f"holders {gpu.address} --json").document, gpu.address


@each_recording
def test_to_bind_a_gpu_is_planned_or_refused_with_a_reason(run: Run, file: Path) -> None:
    for gpu in inventory(file).gpus:
        answer = answered(run, file, f"bind {gpu.address} --dry-run")
        assert answer.out if answer.code == 0 else answer.err.startswith("vfioctl: "), gpu.address
        saved = answered(run, file, f"bind {gpu.address} --dry-run --json")
        assert saved.code == answer.code
        assert saved.document["id" if answer.code == 0 else "error"], gpu.address


@each_recording
def test_it_is_whole_and_written_as_a_snapshot_writes_it(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    first, second, rest = text.split("\n", 2)
    assert first == "#vfioctl-host 1"
    assert second.startswith("# recorded: "), "say what the machine is"
    assert form(read_tree(file)).endswith(rest)


@each_recording
def test_it_has_no_serial_numbers_but_stand_ins(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    uuids = re.findall(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", text, re.IGNORECASE)
    macs = re.findall(r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b", text, re.IGNORECASE)
    assert [uuid for uuid in uuids if not uuid.startswith("00000000-0000-0000-0000-")] == []
    assert [mac for mac in macs if not mac.startswith("00:00:00:00:00:")] == []
    assert not re.findall(r"^/(?:proc/\d+|proc/net|etc/hostname)\b.*", text, re.MULTILINE)


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.host")), ids=lambda file: file.stem)
def test_it_has_a_row_in_the_table_and_is_not_bundled(file: Path) -> None:
    assert f"| `{file.name}` |" in (FOLDER / "README.md").read_text(encoding="utf-8")
    assert file not in bundled_hosts().values()
