"""Recordings of real machines: each is whole, and none tells what is private. `test_captures.py` lists them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.hosts.machines import HOSTS
from tests.unit.conftest import Run
from vfioctl.host import Host
from vfioctl.kernel.recorded.bundled import bundled_hosts
from vfioctl.kernel.recorded.host import read_tree
from vfioctl.kernel.recorded.tree import form

FOLDER = HOSTS / "recorded"
LAB = HOSTS / "lab.host"
RECORDINGS = [*sorted(FOLDER.glob("*.host")), LAB]

each_recording = pytest.mark.parametrize("file", RECORDINGS, ids=lambda file: file.stem)


def test_there_are_some() -> None:
    assert len(RECORDINGS) > 1


@each_recording
def test_each_function_is_shown(run: Run, file: Path) -> None:
    for address in Host.recorded(str(file)).inventory().by_address:
        assert run(f"show {address} --host {file}").code == 0, address
        assert run(f"show {address} --json --host {file}").document, address


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
