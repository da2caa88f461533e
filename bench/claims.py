"""Claims: the work of one, many processes that claim and release, and the list of a long history.

    python -m bench.claims [--runs N] [--seconds N] [--json FILE]

Exits with 1 when a limit is not kept. bench/README.md says how to read the table.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from multiprocessing import Process, Value
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.figures import Figure, keep, show, status
from tests.conftest import memory
from tests.hosts.machines import copy, machine, original
from vfioctl.claims.ledger import rows
from vfioctl.claims.ledger.ledger import ClaimLedger, Draft, Moment, Uses, note
from vfioctl.claims.ledger.migrations import MIGRATIONS
from vfioctl.claims.model.claim import Claim, ClaimedDevice, ClaimState
from vfioctl.core.change import Caller
from vfioctl.core.store import Store
from vfioctl.inventory.model.values import PciAddress
from vfioctl.placement.model.claims import Owner
from vfioctl.placement.model.placement import Placement
from vfioctl.placement.model.request import ClaimRequest

CREATE_MS, PAIRS, TO_SQLITE, LIST_SECONDS = 25.0, 500.0, 3.0, 0.3
PROCESSES, HISTORY = 8, 10_000
MOMENT = Moment("2026-01-01T00:00:00.000+00:00", "boot", Caller(user="root", pid=1, command="bench"))
GPU = "0000:1b:00.0"
Round = Callable[[str], None]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.claims")
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    samples: dict[str, list[float]] = {}
    with TemporaryDirectory(dir=Path.cwd(), prefix=".bench-claims-") as folder:
        home = Path(folder)
        samples["create"] = creating(home / "create.db", options.runs)
        with memory(home) as shared:
            samples["in memory"] = [rate(shared / "pairs.db", _claims, options.seconds)]
        samples["pairs"] = [rate(home / "pairs.db", _claims, options.seconds)]
        samples["sqlite"] = [rate(home / "bare.db", _bare, options.seconds)]
        samples["list"] = listing(home / "history.db", options.runs)
        samples["fsync"] = syncing(home / "sync", options.runs)
    create, quick, pairs, bare, listed, sync = (statistics.median(samples[each]) for each in samples)
    figures = [
        Figure(f"claim create, devices bound: / {CREATE_MS:g} ms", create, CREATE_MS, "ms", 1.0),
        Figure(f"{PAIRS:g} pairs a second / pairs in memory", PAIRS, quick, "1/s", 1.0),
        Figure("bare SQLite / pairs, both on this disk", bare, pairs, "1/s", TO_SQLITE),
        Figure(f"claim list of {HISTORY} / {LIST_SECONDS:g} s", listed, LIST_SECONDS, "s", 1.0),
    ]
    show(figures)
    print(f"one fsync of a page of 4 KiB takes {sync:.2f} ms on this disk; a pair makes two commits")
    keep(options.json, figures, samples, runs=options.runs)
    return status(figures)


def creating(file: Path, runs: int) -> list[float]:
    """Milliseconds of one claim of a device that is bound already, in a process that has done it before."""
    host = machine(copy(original("hgx8")), file)
    host.apply(host.binding.plan_bind([GPU]))
    request = ClaimRequest(owner="vm/bench", devices=(PciAddress(GPU),))
    taken = []
    for _ in range(runs + 1):
        begin = time.perf_counter()
        claim = host.claims.create(request).claim
        taken.append((time.perf_counter() - begin) * 1000)
        host.claims.release(claim.id)
    return taken[1:]


def rate(file: Path, work: Callable[[Path, int], Round], seconds: float) -> float:
    """Rounds a second of several processes, each with its own device, on one database."""
    with Store(file, MIGRATIONS).one_connection():
        pass
    until = time.monotonic() + 1.0 + seconds
    done = [Value("L", 0) for _ in range(PROCESSES)]

    def run(number: int) -> None:
        one = work(file, number)
        while time.monotonic() < until - seconds:
            pass
        device = f"0000:{number:02x}:00.0"
        while time.monotonic() < until:
            one(device)
            done[number].value += 1

    children = [Process(target=run, args=(number,)) for number in range(PROCESSES)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    return float(sum(each.value for each in done)) / seconds


def _claims(file: Path, number: int) -> Round:
    store = Store(file, MIGRATIONS)
    kept = ExitStack()
    kept.enter_context(store.one_connection())
    ledger = ClaimLedger(store, lambda: None)

    def one(device: str, kept: ExitStack = kept) -> None:  # the default keeps the connection open
        del kept
        drafted = _claim(device, f"vm/p{number}")
        claim, _ = ledger.reserve(lambda _: Draft(drafted, Uses((device,)), Placement(())), "{}", "", MOMENT)
        ledger.move(claim.id, ClaimState.RELEASED, MOMENT)

    return one


def _bare(file: Path, number: int) -> Round:
    """The same number of commits and of rows, without anything of vfioctl's."""
    db = sqlite3.connect(file, timeout=30, isolation_level=None)
    db.execute("PRAGMA synchronous = FULL")
    values = rows.columns_of(_claim("0000:00:00.0", "vm/bare"), "{}")[1:]
    insert = f"INSERT INTO claim VALUES ({', '.join('?' * 20)})"  # noqa: S608 - constants
    count = iter(range(1 << 30))

    def one(_: str) -> None:
        name = f"{number}-{next(count)}"
        db.execute("BEGIN IMMEDIATE")
        db.execute(insert, (name, *values))
        db.execute("INSERT INTO claim_live VALUES (?, NULL)", (name,))
        db.execute("INSERT INTO claim_use VALUES (?, 'whole', ?)", (f"r{name}", name))
        db.execute("COMMIT")
        db.execute("BEGIN IMMEDIATE")
        db.execute("DELETE FROM claim_use WHERE resource = ?", (f"r{name}",))
        db.execute("DELETE FROM claim_live WHERE claim = ?", (name,))
        db.execute("UPDATE claim SET state = 'released' WHERE id = ?", (name,))
        db.execute("COMMIT")

    return one


def listing(file: Path, runs: int) -> list[float]:
    """Seconds of `vfioctl claim list --all --json`, the whole process, on a ledger with many claims that have ended."""
    store = Store(file, MIGRATIONS)
    insert = f"INSERT INTO claim VALUES ({', '.join('?' * 20)})"  # noqa: S608 - constants
    with store.transaction() as db:
        for number in range(HISTORY):
            claim = _claim(GPU, "vm/old")._replace(id=f"{number:08x}", state=ClaimState.RELEASED, since=MOMENT.now)
            db.execute(insert, rows.columns_of(claim, "{}"))
            note(db, claim, MOMENT)
    program = "import sys; from vfioctl.app import main; sys.exit(main())"
    command = [
        sys.executable,
        "-c",
        program,
        "claim",
        "list",
        "--all",
        "--json",
        "--ledger",
        str(file),
    ]
    taken = []
    for _ in range(runs):
        begin = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        taken.append(time.perf_counter() - begin)
    return taken


def syncing(file: Path, runs: int) -> list[float]:
    """Milliseconds of writing one page and syncing it."""
    fd = os.open(file, os.O_WRONLY | os.O_CREAT)
    taken = []
    for _ in range(runs):
        begin = time.perf_counter()
        os.pwrite(fd, bytes(4096), 0)
        os.fsync(fd)
        taken.append((time.perf_counter() - begin) * 1000)
    os.close(fd)
    return taken


def _claim(device: str, owner: str) -> Claim:
    return Claim(
        id="",
        owner=Owner(owner),
        state=ClaimState.RESERVED,
        devices=(ClaimedDevice(device),),
        since="",
        boot_id="",
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
