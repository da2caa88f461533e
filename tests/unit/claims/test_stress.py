"""Many processes that claim and release at once, and are killed; and a ledger that a power cut left behind."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.unit.claims.test_ledger import MOMENT, drafted, ledger_at, take
from vfioctl.claims.ledger import rows
from vfioctl.claims.ledger.ledger import Draft, Uses
from vfioctl.claims.model.claim import ClaimState
from vfioctl.errors import StoreDamaged
from vfioctl.placement.model.placement import Placement

ROOT = Path(__file__).resolve().parents[3]
DEVICES = tuple(f"0000:{bus:02x}:00.0" for bus in range(0x41, 0x49))
PROCESSES, ROUNDS, KILLS = 32, 10_000, 50
WORKER = """
import os, random, sys
from pathlib import Path
from tests.unit.claims.test_ledger import ledger_at, take
from tests.unit.claims.test_stress import DEVICES, LATER_MOMENT as moment
from vfioctl.claims.model.claim import ClaimState
from vfioctl.errors import ClaimConflict
file, seed, log = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
ledger, chosen = ledger_at(file), random.Random(seed)
with ledger._store.one_connection():
    while True:
        devices = chosen.sample(DEVICES, chosen.choice((1, 1, 1, 2, 4)))
        try:
            claim = take(ledger, *devices, owner=f"user/p{os.getpid()}")
        except ClaimConflict:
            os.write(log, b"r" )
            continue
        ledger.move(claim.id, ClaimState.HELD, moment)
        ledger.move(claim.id, ClaimState.RELEASED, moment)
        os.write(log, b"d")
"""
LATER_MOMENT = MOMENT


def consistent(file: Path) -> None:
    """Hold the ledger against itself: a device is in at most one live claim, and what live claims say is theirs."""
    with sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True) as db:
        db.execute("BEGIN")
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
        every = [rows.claim_in(row) for row in db.execute(rows.ALL)]
        live = [rows.claim_in(row) for row in db.execute(rows.LIVE)]
        taken = rows.taken_in(db).whole
    assert {claim.id for claim in every if claim.is_live} == {claim.id for claim in live}
    held = [(device.address, claim.id) for claim in live for device in claim.devices]
    assert len({device for device, _ in held}) == len(held)
    assert {device: claim for device, (claim, _) in taken.items()} == dict(held)


@pytest.mark.alone
def test_no_device_is_ever_in_two_claims_and_no_claim_is_lost(fast_folder: Path) -> None:
    """32 processes make at least 10,000 rounds; at least 50 are killed at random moments and replaced."""
    file = fast_folder / "ledger.db"
    take(ledger_at(file), "0000:01:00.0")  # the schema is there
    ours, theirs = os.pipe()
    chosen = random.Random(12)

    def worker() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", WORKER, str(file), str(chosen.getrandbits(32)), str(theirs)]
        return subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs])

    workers = [worker() for _ in range(PROCESSES)]
    done = killed = 0
    until = time.monotonic() + 240
    try:
        while (done < ROUNDS or killed < KILLS) and time.monotonic() < until:
            done += os.read(ours, 4096).count(b"d")
            if done > killed * (ROUNDS // KILLS):
                at = chosen.randrange(PROCESSES)
                workers[at].kill()
                assert workers[at].wait() == -signal.SIGKILL
                workers[at] = worker()
                killed += 1
                _end_claims_of_the_dead(file, {each.pid for each in workers})
                consistent(file)
    finally:
        for each in workers:
            each.kill()
        for each in workers:
            each.wait()
        os.close(ours)
        os.close(theirs)
    assert done >= ROUNDS
    assert killed >= KILLS
    _end_claims_of_the_dead(file, set())
    consistent(file)
    ledger = ledger_at(file)
    assert [claim.owner for claim in ledger.claims()] == ["vm/web1"], "every device is back"
    events = ledger.events()
    assert len({event.claim for event in events}) == len(ledger.claims(live_only=False))
    assert sum(event.state == "released" for event in events) >= done


def _end_claims_of_the_dead(file: Path, alive: set[int]) -> None:
    ledger = ledger_at(file)
    for claim in ledger.claims():
        if claim.owner.kind == "user" and int(claim.owner.name.removeprefix("p")) not in alive:
            ledger.move(claim.id, ClaimState.FAILED, MOMENT, why="its process was killed")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger, with claims that ended and one that did not, whose last changes are only in its write-ahead log."""
    folder = tmp_path_factory.mktemp("cut")
    file = folder / "ledger.db"
    ledger = ledger_at(file)
    first = take(ledger, *DEVICES[:2])
    reader = sqlite3.connect(file)  # keeps the log from being written back
    reader.execute("SELECT count(*) FROM claim").fetchone()
    ledger.move(first.id, ClaimState.HELD, MOMENT)
    for number, device in enumerate(DEVICES[2:]):
        claim = take(ledger, device, owner=f"user/p{number}")
        ledger.move(claim.id, ClaimState.HELD, MOMENT)
        if number % 2:
            ledger.move(claim.id, ClaimState.RELEASED, MOMENT)
    kept = folder / "kept"
    kept.mkdir()
    for each in folder.glob("ledger.db*"):
        shutil.copy(each, kept / each.name)
    reader.close()
    return kept


class TestPowerCuts:
    """Copies of the ledger's files, cut at arbitrary points, open to a consistent ledger or say that they cannot."""

    def test_the_log_holds_the_last_changes(self, files: Path) -> None:
        assert (files / "ledger.db-wal").stat().st_size > 10_000

    @pytest.mark.parametrize("name", ["ledger.db-wal", "ledger.db", "ledger.db-shm"])
    def test_cut_anywhere(self, files: Path, name: str, fast_folder: Path) -> None:
        whole = (files / name).read_bytes()
        chosen = random.Random(name)
        sizes = {0, 1, len(whole) - 1, len(whole), *(chosen.randrange(len(whole)) for _ in range(60))}
        every = ledger_at(shutil.copytree(files, fast_folder / "whole") / "ledger.db").claims(live_only=False)
        opened = refused = 0
        for size in sorted(sizes):
            place = fast_folder / f"{size}"
            shutil.copytree(files, place)
            (place / name).write_bytes(whole[:size])
            before = (place / "ledger.db").read_bytes()
            try:
                claims = ledger_at(place / "ledger.db").claims(live_only=False)
                assert (place / "ledger.db").read_bytes() == before
                assert claims, "nothing is silently reset"
                take(ledger_at(place / "ledger.db"), "0000:09:00.0")
            except StoreDamaged:
                refused += 1
                continue
            opened += 1
            if name == "ledger.db":  # which only a damaged disk cuts off: it is read whole, or refused
                assert claims == every
            else:
                consistent(place / "ledger.db")
        assert opened
        assert refused or name != "ledger.db"

    def test_cut_short_it_has_what_was_committed_before(self, files: Path, fast_folder: Path) -> None:
        """With half of the log, the first claims are there as they were."""
        place = fast_folder / "half"
        shutil.copytree(files, place)
        log = place / "ledger.db-wal"
        log.write_bytes(log.read_bytes()[: log.stat().st_size // 2])
        ledger = ledger_at(place / "ledger.db")
        assert {device for device, _ in ledger.taken().whole.items()} >= {*DEVICES[:2]}
        consistent(place / "ledger.db")


def test_a_draft_that_conflicts_leaves_nothing(fast_folder: Path) -> None:
    """Of a claim of many devices whose last is taken, nothing stays."""
    file = fast_folder / "ledger.db"
    take(ledger_at(file), DEVICES[-1])
    with pytest.raises(Exception, match="belongs to claim"):
        ledger_at(file).reserve(lambda _: Draft(drafted(*DEVICES), Uses(DEVICES), Placement(())), "", "", MOMENT)
    consistent(file)
    assert [*ledger_at(file).taken().whole] == [DEVICES[-1]]
