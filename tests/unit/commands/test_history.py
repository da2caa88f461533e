"""`vfioctl history`: which changes it lists, one change whole, and what may be deleted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import cast

import pytest

from tests.hosts.machines import REGISTRY
from tests.unit.conftest import PROGRAM, Run
from vfioctl.commands.history import moment
from vfioctl.core.change import JournalEntry, JournalState
from vfioctl.core.history import recorded_devices
from vfioctl.errors import BadSpec
from vfioctl.host import Host

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
GPU = "0000:01:00.0"


def numbers(run: Run, line: str) -> list[int]:
    answer = run(f"history {line} --json --simulate laptop")
    assert answer.code == 0, answer
    return [entry["id"] for entry in answer.document["entries"]]


def bind_and_unbind(run: Run, times: int = 1) -> None:
    for _ in range(times):
        assert run(f"bind {GPU} --yes --simulate laptop").code == 0
        assert run(f"unbind {GPU} --yes --simulate laptop").code == 0


def age(days: int, *entries: int) -> None:
    """Let changes have begun so many days ago."""
    began = (datetime.now(UTC) - timedelta(days=days)).isoformat(timespec="milliseconds")
    with Host.simulated("laptop").session.store.transaction() as db:
        db.executemany("UPDATE journal SET began = ? WHERE id = ?", [(began, entry) for entry in entries])


class TestDevicesThatAreGone:
    UUID = "6d3f2c1a-0b4e-4f6d-8a7c-5e9b1f2a3c4d"

    @pytest.mark.parametrize(
        ("name", "found"), [("6d3", False), ("6d3f", True), ("6D3F2C1A", True), ("6d3e", False), ("", False)]
    )
    def test_are_known_by_four_digits_of_a_uuid(self, name: str, found: bool) -> None:
        entry = cast("JournalEntry", SimpleNamespace(devices=frozenset({self.UUID, GPU})))
        assert recorded_devices([entry], name) == (frozenset({self.UUID}) if found else frozenset())

    @pytest.mark.parametrize("name", [GPU, "01:00.0"])
    def test_are_known_by_their_addresses(self, name: str) -> None:
        entry = cast("JournalEntry", SimpleNamespace(devices=frozenset({self.UUID, GPU})))
        assert recorded_devices([entry], name) == frozenset({GPU})


class TestMoments:
    @pytest.mark.parametrize(
        ("text", "before"),
        [
            ("90s", {"seconds": 90}),
            ("30m", {"minutes": 30}),
            ("2h", {"hours": 2}),
            ("1h30m", {"minutes": 90}),
            ("3d", {"days": 3}),
            ("2w", {"days": 14}),
        ],
    )
    def test_in_the_past(self, text: str, before: dict[str, int]) -> None:
        assert moment(text, now=NOW) == NOW - timedelta(**before)

    def test_dates_are_utc_unless_they_say_otherwise(self) -> None:
        assert moment("2026-11-01", now=NOW) == datetime(2026, 11, 1, tzinfo=UTC)
        assert moment("2026-11-01T18:30", now=NOW) == datetime(2026, 11, 1, 18, 30, tzinfo=UTC)
        there = timezone(timedelta(hours=2))
        assert moment("2026-11-01T18:30+02:00", now=NOW) == datetime(2026, 11, 1, 18, 30, tzinfo=there)

    @pytest.mark.parametrize(
        "text", ["", "2", "2x", "-2h", "1.5x", "999999w", "today", "2026-13-01", "999999999d", "\u0662h"]
    )
    def test_others_are_refused(self, text: str) -> None:
        with pytest.raises(BadSpec, match="not a time") as caught:
            moment(text, now=NOW)
        assert "2026-11-01" in caught.value.hint

    def test_before_there_was_time(self, run: Run) -> None:
        bind_and_unbind(run)
        assert numbers(run, "--since 5200w") == [2, 1]
        assert run("history --since 99999w --simulate laptop").code == 2


class TestList:
    def test_since(self, run: Run) -> None:
        bind_and_unbind(run)
        age(3, 1)
        assert numbers(run, "--since 2d") == [2]
        assert numbers(run, "--since 4d") == [2, 1]
        assert numbers(run, "--since 2d -n 5") == [2]
        assert numbers(run, f"-n {10**30}") == [2, 1]
        assert run("history --since 0s --simulate laptop").out == "No such changes.\n"

    def test_of_a_device(self, run: Run) -> None:
        bind_and_unbind(run)
        assert numbers(run, "--device gpu0") == [2, 1]
        assert run("sriov set 00:02.0 2 --yes --simulate laptop").code == 0
        assert numbers(run, "--device 01:00.0 -n 1") == [2]
        assert numbers(run, "--device 00:02.0") == [3]
        age(3, 1)
        assert numbers(run, f"--device {GPU} --since 1d") == [2]

    def test_of_a_device_that_is_gone(self, run: Run) -> None:
        assert run("vgpu create T4-4C --yes --simulate t4").code == 0
        uuid = run("vgpu list --simulate t4 --json").document["instances"][0]["id"]
        assert run(f"vgpu remove {uuid} --yes --simulate t4").code == 0
        for name in (uuid, uuid[:8], uuid.upper(), "3b:00.0"):
            answer = run(f"history --device {name} --json --simulate t4")
            assert [entry["plan"]["intent"]["verb"] for entry in answer.document["entries"]] == [
                "vgpu remove",
                "vgpu create",
            ]

    @pytest.mark.parametrize("name", ["gpu9", "0000:ff:00.0", "nonsense", "0000", "0"])
    def test_of_a_device_that_never_was(self, run: Run, name: str) -> None:
        bind_and_unbind(run)
        assert run(f"history --device {name} --simulate laptop").code == 2
        assert run("history --simulate laptop --device", "").code == 2

    def test_its_options_are_not_those_of_a_command(self, run: Run) -> None:
        answer = run("history -n 1 prune --keep 1 --simulate laptop")
        assert (answer.code, answer.out) == (2, "")
        assert "prune" in answer.err


class TestShow:
    def test_tells_who_what_and_how(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "argv", ["vfioctl", "bind", GPU])
        monkeypatch.setenv("SUDO_USER", "alice")
        bind_and_unbind(run)
        told = run("history show 1 --simulate laptop").out
        assert told.startswith(f"Change 1: bind {GPU}\nstate    done\n")
        for text in (
            f"by       alice, with sudo as root, process {os.getpid()}\n",
            f"command  vfioctl bind {GPU}\n",
            "-> vfio-pci",
            "drivers_probe",
            f"vfioctl unbind {GPU}",
        ):
            assert text in told.replace("->  ", "-> ")
        assert "alice (sudo)" in run("history --simulate laptop").out

    def test_tells_why_a_change_failed(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VFIOCTL_FAULTS", "3:EBUSY")
        assert run(f"bind {GPU} --yes --simulate laptop").code == 5
        told = run("history show 1 --simulate laptop").out
        assert "state    back: the host was put back as before\nreason   writing " in told
        assert "Undone by" not in told

    def test_says_what_is_not_known(self, run: Run) -> None:
        bind_and_unbind(run)
        with Host.simulated("laptop").session.store.transaction() as db:
            db.execute("UPDATE journal SET user = '', command = '', pid = NULL, ended = NULL, state = 'open'")
        told = run("history show 1 --simulate laptop").out
        for text in (
            "by       unknown\n",
            "command  unknown\n",
            "ended    not yet\n",
            "state    open: interrupted, or made by a process that",
        ):
            assert text in told

    def test_no_control_character_of_a_command_line_reaches_the_terminal(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "argv", ["\x1b[2J"])
        monkeypatch.setenv("SUDO_USER", "\x1b[2J")
        bind_and_unbind(run)
        assert "\x1b" not in run("history show 1 --simulate laptop").out + run("history --simulate laptop").out

    def test_in_json_is_one_entry_of_the_list(self, run: Run) -> None:
        bind_and_unbind(run)
        listed = run("history --json --simulate laptop").document["entries"]
        assert run("history show 2 --json --simulate laptop").document == listed[0]

    def test_takes_the_beginning_of_a_plans_id(self, run: Run) -> None:
        bind_and_unbind(run)
        plan = run("history --json --simulate laptop").document["entries"][0]["plan"]["id"]
        for begun in (plan, plan[:6], plan[:6].upper()):
            assert run(f"history show {begun} --json --simulate laptop").document["id"] == 2

    def test_a_plan_that_ran_twice_is_named_by_number(self, run: Run) -> None:
        bind_and_unbind(run, 2)
        entries = run("history --json --simulate laptop").document["entries"]
        (twice,) = {entry["plan"]["id"] for entry in entries if entry["plan"]["intent"]["verb"] == "unbind"}
        answer = run(f"history show {twice} --simulate laptop")
        assert answer.code == 2
        assert "matches 2 changes" in answer.err
        assert "name one by its number: 4, 2" in answer.err

    @pytest.mark.parametrize("name", ["3", "0", "018", "-1", "zz", "99999999999999999999999"])
    def test_of_no_change(self, run: Run, name: str) -> None:
        bind_and_unbind(run)
        answer = run(f"history show --simulate laptop -- {name}")
        assert answer.code == 2
        assert answer.err.startswith(f"vfioctl: there is no change '{name}' in the ledger\n  next:     vfioctl history")
        assert run("history show --simulate laptop", "").code == 2

    def test_ids_are_completed(self, run: Run) -> None:
        bind_and_unbind(run)
        words = "vfioctl history show --simulate laptop "
        environment = {**os.environ, "_VFIOCTL_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": words}
        told = subprocess.run(PROGRAM, env=environment, capture_output=True, text=True, check=False).stdout
        assert f'"1":"bind {GPU}"' in told.replace("\\", "")
        assert f'"2":"unbind {GPU}"' in told.replace("\\", "")


class TestPrune:
    def prune(self, run: Run, line: str) -> list[int]:
        """The changes that are left."""
        assert run(f"history prune {line} --simulate laptop").code == 0
        return numbers(run, "")

    def test_by_number_and_by_age(self, run: Run) -> None:
        bind_and_unbind(run, 3)
        age(30, 1, 2, 3)
        assert self.prune(run, "--older-than 60d") == [6, 5, 4, 3, 2, 1]
        assert self.prune(run, "--older-than 10d --keep 4") == [6, 5, 4, 3]
        assert self.prune(run, "--older-than 10d") == [6, 5, 4]
        assert self.prune(run, "--keep 2") == [6, 5]

    def test_the_newest_stays_so_that_no_number_is_used_twice(self, run: Run) -> None:
        bind_and_unbind(run)
        assert self.prune(run, "--older-than 0s") == [2]
        bind_and_unbind(run)
        assert numbers(run, "") == [4, 3, 2]

    def test_what_unbind_must_know_stays(self, run: Run) -> None:
        bind_and_unbind(run)
        assert run(f"bind {GPU} --yes --simulate laptop").code == 0
        assert run("sriov set 00:02.0 2 --yes --simulate laptop").code == 0
        assert self.prune(run, "--older-than 0s") == [4, 3]
        before = run(f"unbind {GPU} --dry-run --json --simulate laptop").document["changes"]
        assert {change["name"]: change["after"] for change in before}[GPU].startswith("nouveau")
        assert any("d3cold" in change["kind"] for change in before), "the settings come from the journal's plan"

    def test_unfinished_changes_stay(self, run: Run) -> None:
        words = ("bind", GPU, "--yes", "--simulate", "laptop")
        killed = subprocess.run([*PROGRAM, *words], env={**os.environ, "VFIOCTL_FAULTS": "5:die"}, check=False)
        assert killed.returncode != 0
        assert run("sriov set 00:02.0 2 --yes --simulate laptop").code == 0
        assert self.prune(run, "--older-than 0s") == [2, 1]
        assert run("recover --yes --simulate laptop").code == 0

    def test_those_that_created_vgpus_stay(self, run: Run) -> None:
        for _ in range(2):
            assert run("vgpu create T4-4C --yes --simulate t4").code == 0
        assert run("history prune --keep 1 --simulate t4").out == "No change to delete.\n"

    def test_a_dry_run_deletes_nothing(self, run: Run) -> None:
        bind_and_unbind(run)
        answer = run("history prune --keep 1 --dry-run --simulate laptop")
        assert f"bind {GPU}" in answer.out
        assert answer.err == "Nothing was deleted: this is a dry run.\n"
        document = run("history prune --keep 1 --dry-run --json --simulate laptop").document
        assert document == {"changes": [1], "deleted": 0}
        assert numbers(run, "") == [2, 1]

    def test_in_json_tells_what_was_deleted(self, run: Run) -> None:
        bind_and_unbind(run)
        assert run("history prune --keep 1 --json --simulate laptop").document == {"changes": [1], "deleted": 1}
        assert run("history prune --keep 1 --json --simulate laptop").document == {"changes": [], "deleted": 0}

    def test_without_a_ledger_makes_none(self, run: Run) -> None:
        assert run("history prune --keep 1 --simulate laptop").out == "No change to delete.\n"
        assert not Host.simulated("laptop").session.ledger.exists()

    @pytest.mark.parametrize("line", ["", "--keep 0", "--keep -1", "--older-than soon", "--keep many"])
    def test_is_refused_without_a_limit(self, run: Run, line: str) -> None:
        bind_and_unbind(run)
        assert run(f"history prune {line} --simulate laptop").code == 2
        assert numbers(run, "") == [2, 1]

    def test_what_became_needed_meanwhile_stays(self, run: Run) -> None:
        bind_and_unbind(run, 2)
        host = Host.simulated("laptop")
        chosen = host.prunable(keep=1)
        with host.session.store.transaction() as db:
            db.execute("INSERT INTO under_change VALUES ('x', 2)")
        assert host.prune(chosen) == 2
        assert numbers(run, "") == [4, 2]


def test_a_ledger_that_cannot_be_written_is_told(run: Run) -> None:
    bind_and_unbind(run)
    ledger = Host.simulated("laptop").session.ledger
    ledger.write_bytes(b"nonsense" * 1000)
    assert run("history prune --keep 1 --simulate laptop").code == 3
    assert run("history show 1 --simulate laptop").code == 3


def test_an_entry_of_an_earlier_release_is_valid() -> None:
    """A document without the caller, as `history --json` printed it before."""
    plan = Host.simulated("laptop").binding.plan_bind([GPU])
    document = {"id": 1, "plan": json.loads(plan.model_dump_json()), "state": "done", "boot_id": "b", "began": "t"}
    entry = JournalEntry.model_validate(document, context={"registry": REGISTRY})
    assert (entry.state, entry.caller.user) == (JournalState.DONE, "")
