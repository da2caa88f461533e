"""Who made a change, as the journal records it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hosts.machines import copy, machine, original
from vfioctl.core.caller import LONGEST, is_running, this_process
from vfioctl.core.change import Caller


def test_is_in_the_journal_with_each_change(fast_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["vfioctl", "bind", "a b"])
    monkeypatch.setenv("SUDO_USER", "alice")
    host = machine(copy(original("laptop")), fast_folder / "ledger.db")
    host.apply(host.binding.plan_bind(["01:00.0"]))
    (entry,) = host.history()
    assert entry.caller == Caller(user="root", sudo_user="alice", pid=os.getpid(), command="vfioctl bind 'a b'")


def test_a_user_without_a_name_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 987654)
    assert this_process().user == "987654"


def test_without_sudo_there_is_no_sudo_user() -> None:
    assert this_process().sudo_user == ""


def test_a_program_without_a_command_line_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys, "argv")
    assert this_process().command == ""


def test_a_long_command_line_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["vfioctl", *["gpu0"] * 100_000])
    command = this_process().command
    assert len(command) == LONGEST == 1000
    assert command.startswith("vfioctl gpu0 gpu0 ")
    assert command.endswith(" ...")


def test_bytes_that_are_no_text_can_be_stored(fast_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["vfioctl", os.fsdecode(b"\xff\xfe")])
    monkeypatch.setenv("SUDO_USER", os.fsdecode(b"\xe9ve"))
    host = machine(copy(original("laptop")), fast_folder / "ledger.db")
    host.apply(host.binding.plan_bind(["01:00.0"]))
    caller = host.history()[0].caller
    assert (caller.command, caller.sudo_user) == (r"vfioctl '\udcff\udcfe'", r"\udce9ve")


def test_a_process_runs_until_it_has_been_waited_for() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        assert is_running(process.pid)
        assert process.stdin
        process.stdin.close()
        process.wait()
        assert not is_running(process.pid)
    assert is_running(os.getpid())
    assert is_running(1 << 80), "a number that no process can have: nothing is known"
