"""A ledger whose rows have odd values: every command that reads it says so, and none has a traceback."""

from __future__ import annotations

import gc
import random
import re
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.machines import HOSTS
from tests.unit.conftest import Run
from vfioctl.session import Session

SEED = 20
EXIT_CODES = Path(__file__).resolve().parents[3] / "docs/reference/exit-codes.md"
COMMANDS = (
    "inventory",
    "show {gpu}",
    "history",
    "unbind {gpu} --dry-run",
    "recover --dry-run",
    "vgpu list",
    "holders {gpu}",
    "claim list --all",
    "claim show {claim} --json",
    "claim create --owner vm/b --gpus 1 --key k",
    "place --gpus 1",
    "kubelet status",
    "share plan",
    "mps status",
    "kubelet uncordon {gpu} --json",
)
ODD = (
    None,
    0,
    -1,
    2**63 - 1,
    1.5,
    "",
    "odd",
    "2026-01-01",
    "{",
    "[]",
    "null",
    '{"version": 2}',
    "0000:zz:00.0",
    "\x1b[2J\ud800".encode("utf-8", "surrogatepass").decode("utf-8", "replace"),
    b"\xff\xfe\x00",
    "x" * 100_000,
)
"""Of the wrong type, missing, damaged, hostile, huge."""
NOT_UTF8 = "CAST(X'fffe80' AS TEXT)"


@pytest.fixture
def used(run: Run, fast_folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str, str]:
    """A host with every kind of row in its ledger; the address of its last GPU, whose last change hangs; its claim."""
    monkeypatch.setattr(Session, "_machine_id", "0123456789abcdef" * 2)
    (fast_folder / "config.toml").write_text('[[kubelet.resources]]\nname = "a.b/c"\ndevices = "vf"\n')
    monkeypatch.setenv("VFIOCTL_CONFIG", str(fast_folder / "config.toml"))
    file = fast_folder / "l40s.host"
    # its last VF has no driver: nobody claims one that NVIDIA's driver has, and that is no vGPU
    taken = ("0000:41:04.3/driver ->", "drivers/nvidia/0000:41:04.3 ->")
    lines = (HOSTS / "l40s.host").read_text(encoding="utf-8").splitlines(keepends=True)
    file.write_text("".join(line for line in lines if not any(each in line for each in taken)), encoding="utf-8")
    on_it = f"--yes --simulate {file}"
    gpu = run(f"inventory --json --simulate {file}").document["gpus"][-1]["address"]
    for words in (
        "vgpu create L40S-12Q --persistent",
        f"bind {gpu}",
        f"unbind {gpu}",
        "claim create --owner vm/a --vgpu L40S-12Q --cpus 2",
        f"claim create --owner vm/b --device {gpu} --key k",
    ):
        assert run(f"{words} {on_it}").code == 0, words
    assert run(f"kubelet cordon {gpu} --why loud --simulate {file}").code == 0
    share_on_another_host(run, fast_folder, ledger_of(file))
    claim = run(f"claim list --owner vm/b --json --simulate {file}").document["claims"][0]["id"]
    monkeypatch.setenv("VFIOCTL_FAULTS", "3:hang")
    assert run(f"claim release {claim} {on_it}").code == 7
    monkeypatch.delenv("VFIOCTL_FAULTS")
    return file, gpu, claim


def ledger_of(file: Path) -> Path:
    (ledger,) = (each for each in file.parent.iterdir() if each.suffix == ".db")
    return ledger


def share_on_another_host(run: Run, folder: Path, ledger: Path) -> None:
    """No GPU of the first host gives shares."""
    (folder / "other").mkdir()
    other = shutil.copy(HOSTS / "gh200.host", folder / "other")
    of_share = "claim create --owner pod/a/b/c --cores 40 --gpu-memory 8GiB --yes"
    assert run(f"{of_share} --simulate {other} --ledger {ledger}").code == 0


def columns(ledger: Path) -> list[tuple[str, str]]:
    with sqlite3.connect(ledger) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")]
        found = [(table, row[1]) for table in tables for row in db.execute(f"PRAGMA table_info({table})")]
        empty = [table for table in tables if not db.execute(f"SELECT 1 FROM {table}").fetchone()]  # noqa: S608 - its own
    assert not empty, f"no row in {empty}: the test does not read them"
    return found


def spoiled(ledger: Path, table: str, column: str) -> Iterator[str]:
    """Give the column two odd values, in one row or in all of them; put it back afterwards."""
    chosen = random.Random(f"{SEED} {table} {column}")
    sound = ledger.read_bytes()
    for value in (*chosen.sample(ODD, 1), NOT_UTF8):
        where = chosen.choice(["", f"WHERE rowid = (SELECT max(rowid) FROM {table})"])  # noqa: S608 - its own
        raw = value == NOT_UTF8
        query = f"UPDATE {table} SET {column} = {NOT_UTF8 if raw else '?'} {where}"  # noqa: S608 - its own
        with sqlite3.connect(ledger) as db:
            db.execute("PRAGMA ignore_check_constraints = ON")
            try:
                db.execute(query, () if raw else (value,))
            except sqlite3.IntegrityError:  # of another type than the column's, or the same key twice
                db.rollback()
                continue
        db.close()
        yield f"{table}.{column} = {str(value)[:40]!r} {where}"
        gc.collect()  # what a command that failed has still open
        for leftover in ledger.parent.glob(f"{ledger.name}-*"):
            leftover.unlink()
        ledger.write_bytes(sound)


def known_codes() -> set[int]:
    return {0, *map(int, re.findall(r"^\| ([0-9]) \|", EXIT_CODES.read_text(encoding="utf-8"), re.MULTILINE))}


def test_costs_no_traceback(run: Run, used: tuple[Path, str, str]) -> None:
    file, gpu, claim = used
    ledger = ledger_of(file)
    with sqlite3.connect(ledger) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    codes, tried = known_codes(), 0
    for table, column in columns(ledger):
        for what in spoiled(ledger, table, column):
            tried += 1
            for command in COMMANDS:
                try:
                    answer = run(f"{command.format(gpu=gpu, claim=claim)} --simulate {file}")
                except Exception as error:
                    raise AssertionError(f"{command}, with {what}") from error
                assert answer.code in codes, (command, what)
                assert "Traceback" not in answer.err, (command, what)
                assert "\x1b" not in answer.out + answer.err, (command, what)
    assert tried > 40
