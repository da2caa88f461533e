"""The ledger's claims: what is exclusive, what a key means, and what each state gives back."""

from __future__ import annotations

import json
import multiprocessing
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from tests.processes import end_in_time
from vfioctl.claims.ledger.ledger import ClaimLedger, Draft, Moment, Uses
from vfioctl.claims.ledger.migrations import MIGRATIONS
from vfioctl.claims.model.claim import Claim, ClaimedDevice, ClaimState, Undo
from vfioctl.core.change import Caller
from vfioctl.core.store import Store
from vfioctl.errors import BadSpec, ClaimConflict
from vfioctl.inventory.model.values import PciAddress
from vfioctl.placement.model.claims import Hugepages, Owner, Taken
from vfioctl.placement.model.placement import Placement
from vfioctl.units import Uuid

GPU, OTHER, VF, VF2 = "0000:41:00.0", "0000:42:00.0", "0000:41:00.4", "0000:41:00.5"
MDEV = Uuid("6d3f2c1a-0000-4000-8000-000000000001")
MIG, IN_MIG = "MIG-6d3f2c1a-0000-5000-8000-000000000001", Uuid("7d3f2c1a-0000-4000-8000-000000000002")
PARTS = {VF: (GPU,), MDEV: (VF2, GPU), MIG: (GPU,), IN_MIG: (MIG, GPU)}
"""Parts of one card, each with what it reserves a part of."""
MOMENT = Moment(
    "2026-11-01T12:00:00.000+00:00", "boot-1", Caller(user="root", sudo_user="alice", pid=7, command="test")
)
LATER = Moment("2026-11-01T13:00:00.000+00:00", "boot-1", Caller(user="root", pid=8))


@pytest.fixture
def ledger(fast_folder: Path) -> ClaimLedger:
    return ledger_at(fast_folder / "ledger.db")


def ledger_at(file: Path) -> ClaimLedger:
    return ClaimLedger(Store(file, MIGRATIONS), lambda: None)


def drafted(*devices: str, owner: str = "vm/web1", **more: object) -> Claim:
    return Claim(
        id="",
        owner=Owner(owner),
        state=ClaimState.RESERVED,
        devices=tuple(map(ClaimedDevice, devices)),
        since="",
        boot_id="",
        **more,  # type: ignore[arg-type]
    )


def take(
    ledger: ClaimLedger,
    *devices: str,
    shared: tuple[str, ...] = (),
    key: str = "",
    request: str = "{}",
    owner: str = "vm/web1",
) -> Claim:
    claim = drafted(*devices, owner=owner)
    return ledger.reserve(lambda _: Draft(claim, Uses(devices, shared), Placement(())), request, key, MOMENT)[0]


class TestAClaim:
    def test_is_read_as_it_was_written(self, ledger: ClaimLedger) -> None:
        devices = (
            ClaimedDevice(GPU, identity="10de:2330:10de:16c1:030200", undo=Undo.UNBIND),
            ClaimedDevice("0000:41:00.1", asked=False),
            ClaimedDevice(OTHER, mdev=MDEV, undo=Undo.REMOVE),
        )
        wanted = Claim(
            id="",
            owner=Owner("pod/ml/train-0/main"),
            state=ClaimState.RESERVED,
            devices=devices,
            since="",
            boot_id="",
            cpus=(0, 1, 2, 3, 8),
            hugepages=(Hugepages(1, 2 << 20, 512),),
            labels={"team": "ml"},
            expires="2026-11-02T12:00:00.000+00:00",
        )
        made, is_new = ledger.reserve(lambda _: Draft(wanted, Uses((GPU,)), Placement(())), "{}", "train", MOMENT)
        assert is_new
        assert ledger.claims() == (made,)
        assert (made.devices, made.cpus, made.hugepages) == (devices, wanted.cpus, wanted.hugepages)
        assert (made.user, made.sudo_user, made.pid, made.command) == ("root", "alice", 7, "test")
        assert (made.key, made.labels, made.boot_id, made.since) == ("train", {"team": "ml"}, "boot-1", MOMENT.now)
        assert made.functions == (PciAddress(GPU),)
        assert made.mdevs == (MDEV,)

    def test_is_found_by_the_beginning_of_its_id(self, ledger: ClaimLedger) -> None:
        made = take(ledger, GPU)
        assert ledger.claim(made.id) == ledger.claim(made.id[:4].upper()) == made
        for name in (made.id[:3], "", "*" * 8, "zzzz", f"{made.id}0"):
            with pytest.raises(BadSpec):
                ledger.claim(name)

    def test_tells_what_happened_to_it(self, ledger: ClaimLedger) -> None:
        made = take(ledger, GPU)
        ledger.move(made.id, ClaimState.HELD, LATER)
        ledger.amend(made.id, LATER, owner=Owner("vm/web2"), why="transferred from vm/web1")
        ledger.move(made.id, ClaimState.RELEASED, LATER)
        take(ledger, OTHER)
        events = ledger.events(claim=made.id)
        assert [(each.state, each.owner, each.at, each.pid, each.why) for each in events] == [
            ("reserved", "vm/web1", MOMENT.now, 7, ""),
            ("held", "vm/web1", LATER.now, 8, ""),
            ("held", "vm/web2", LATER.now, 8, "transferred from vm/web1"),
            ("released", "vm/web2", LATER.now, 8, ""),
        ]
        assert [each.number for each in ledger.events(after=events[-1].number)] == [ledger.last_event()]

    @pytest.mark.parametrize("state", [ClaimState.RELEASED, ClaimState.FAILED])
    def test_that_has_ended_gives_back_what_it_took(self, ledger: ClaimLedger, state: ClaimState) -> None:
        made = take(ledger, VF, shared=(GPU,), key="k")
        ended = ledger.move(made.id, state, LATER, why="why")
        assert (ended.ended, ended.why, ended.is_live) == (LATER.now, "why", False)
        assert ledger.taken() == Taken()
        assert ledger.claims() == ()
        assert ledger.claims(live_only=False) == (ended,)
        assert take(ledger, GPU, VF, key="k").state is ClaimState.RESERVED

    @pytest.mark.parametrize("state", [ClaimState.RELEASED, ClaimState.FAILED])
    def test_that_has_ended_stays_so(self, ledger: ClaimLedger, state: ClaimState) -> None:
        made = take(ledger, GPU)
        ledger.move(made.id, state, LATER)
        take(ledger, GPU)
        with pytest.raises(ClaimConflict, match=f"is {state} already"):
            ledger.move(made.id, ClaimState.HELD, LATER)
        with pytest.raises(ClaimConflict):
            ledger.amend(made.id, LATER, owner=Owner("vm/web2"), why="")


class TestExclusion:
    def test_a_device_is_in_one_claim(self, ledger: ClaimLedger) -> None:
        made = take(ledger, GPU, OTHER)
        with pytest.raises(ClaimConflict, match=f"{OTHER} belongs to claim {made.id} of vm/web1") as caught:
            take(ledger, VF, OTHER, owner="vm/web2")
        assert caught.value.next_command == f"vfioctl claim release {made.id}"
        assert ledger.claims() == (made,), "nothing of the refused claim is left"
        assert list(ledger.taken().whole) == [GPU, OTHER]

    def test_parts_of_a_device_are_in_several(self, ledger: ClaimLedger) -> None:
        one = take(ledger, VF, shared=(GPU,))
        other = take(ledger, VF2, shared=(GPU,), owner="vm/web2")
        assert ledger.taken().shared == {GPU: ((one.id, "vm/web1"), (other.id, "vm/web2"))}
        with pytest.raises(ClaimConflict, match=f"a part of {GPU} belongs to claim"):
            take(ledger, GPU)
        ledger.move(one.id, ClaimState.RELEASED, LATER)
        with pytest.raises(ClaimConflict, match=f"a part of {GPU} belongs to claim {other.id}"):
            take(ledger, GPU)
        ledger.move(other.id, ClaimState.RELEASED, LATER)
        take(ledger, GPU)

    def test_a_device_that_is_taken_whole_has_no_parts_for_others(self, ledger: ClaimLedger) -> None:
        made = take(ledger, GPU)
        with pytest.raises(ClaimConflict, match=f"{GPU} belongs to claim {made.id}"):
            take(ledger, VF, shared=(GPU,))
        assert ledger.claims() == (made,)

    @pytest.mark.parametrize("first", PARTS)
    @pytest.mark.parametrize("second", PARTS)
    def test_parts_of_all_kinds_exclude_the_whole_card_and_not_each_other(
        self, ledger: ClaimLedger, first: str, second: str
    ) -> None:
        """A part is named by itself and reserves the cards above it: a VF, a vGPU, a MIG instance, a vGPU in one."""
        one = take(ledger, first, shared=PARTS[first])
        for whole in (first, *PARTS[first]):
            with pytest.raises(ClaimConflict, match=f"claim {one.id}"):
                take(ledger, whole, owner="vm/web2")
        if second == first or second in PARTS[first] or first in PARTS[second]:
            with pytest.raises(ClaimConflict, match=f"claim {one.id}"):
                take(ledger, second, shared=PARTS[second], owner="vm/web2")
            return
        other = take(ledger, second, shared=PARTS[second], owner="vm/web2")
        ledger.move(one.id, ClaimState.RELEASED, LATER)
        with pytest.raises(ClaimConflict, match=f"claim {other.id}"):
            take(ledger, GPU)
        ledger.move(other.id, ClaimState.RELEASED, LATER)
        all_of_it = take(ledger, GPU)
        for part, above in PARTS.items():
            with pytest.raises(ClaimConflict, match=f"claim {all_of_it.id}"):
                take(ledger, part, shared=above, owner="vm/web2")

    def test_cpus_are_in_one_claim(self, ledger: ClaimLedger) -> None:
        made = take(ledger, "cpu 4", "cpu 5")
        with pytest.raises(ClaimConflict, match="cpu 5"):
            take(ledger, "cpu 5", "cpu 6")
        assert ledger.taken().cpus == {4: (made.id, "vm/web1"), 5: (made.id, "vm/web1")}

    def test_holds_in_the_database_itself(self, ledger: ClaimLedger, fast_folder: Path) -> None:
        """Whatever the code above it does."""
        made = take(ledger, GPU, shared=(OTHER,))
        other = take(ledger, VF)
        with sqlite3.connect(fast_folder / "ledger.db") as db:
            db.execute("PRAGMA foreign_keys = ON")
            for statement in (
                "INSERT INTO claim_use VALUES (:gpu, 'whole', :claim)",
                "INSERT INTO claim_use VALUES (:gpu, 'shared', NULL)",
                "INSERT INTO claim_use VALUES (:shared, 'whole', :claim)",
                "INSERT INTO claim_part VALUES (:claim, :gpu, 'shared')",
                "INSERT INTO claim_part VALUES (:claim, :gpu, 'whole')",
                "UPDATE claim_use SET mode = 'whole', claim = :claim WHERE resource = :shared",
                "DELETE FROM claim_use WHERE resource = :shared",
                "DELETE FROM claim_live WHERE claim = :other",
                "INSERT INTO claim_use VALUES ('new', 'whole', 'no such claim')",
                "INSERT INTO claim_use VALUES ('new', 'shared', NULL), ('new', 'shared', NULL)",
            ):
                with pytest.raises(sqlite3.IntegrityError):
                    db.execute(statement, {"gpu": GPU, "shared": OTHER, "claim": other.id, "other": made.id})

    def test_what_chooses_sees_what_is_taken(self, ledger: ClaimLedger) -> None:
        made, _ = ledger.reserve(
            lambda _: Draft(
                drafted(GPU, hugepages=(Hugepages(0, 2 << 20, 3),), labels={"a": "b"}), Uses((GPU,)), Placement(())
            ),
            "",
            "",
            MOMENT,
        )
        seen = []

        def choose(taken: Taken) -> Draft:
            seen.append(taken)
            return Draft(drafted(OTHER), Uses((OTHER,)), Placement(()))

        ledger.reserve(choose, "", "", MOMENT)
        assert seen[0].whole == {GPU: (made.id, "vm/web1")}
        assert seen[0].hugepages == {(0, 2 << 20): 3}
        assert (seen[0].owners, seen[0].labels) == ({"vm/web1": 1}, {("a", "b"): 1})


class TestKeys:
    def test_the_same_request_is_the_same_claim(self, ledger: ClaimLedger) -> None:
        made = take(ledger, GPU, key="k", request="one")
        assert take(ledger, OTHER, key="k", request="one") == made == ledger.keyed("k", "one")
        assert ledger.claims() == (made,)

    def test_another_request_is_a_conflict(self, ledger: ClaimLedger) -> None:
        made = take(ledger, GPU, key="k", request="one")
        why = f"the key 'k' belongs to claim {made.id} of vm/web1"
        with pytest.raises(ClaimConflict, match=why):
            ledger.keyed("k", "two")
        with pytest.raises(ClaimConflict, match=why):
            take(ledger, OTHER, key="k", request="two")

    def test_without_one_each_request_is_another(self, ledger: ClaimLedger) -> None:
        assert take(ledger, GPU).id != take(ledger, OTHER).id
        assert ledger.keyed("", "{}") is None


def racing(file: Path, gate: Barrier, answers: SimpleQueue[str]) -> None:
    end_in_time()
    gate.wait(timeout=60)
    made = "failed"
    try:
        made = take(ledger_at(file), GPU, owner=f"user/p{os.getpid()}").id
    except ClaimConflict:
        made = ""
    finally:
        answers.put(made)


def test_of_many_processes_one_gets_the_device(fast_folder: Path) -> None:
    file = fast_folder / "ledger.db"
    gate = multiprocessing.Barrier(8)
    answers: SimpleQueue[str] = multiprocessing.SimpleQueue()
    children = [multiprocessing.Process(target=racing, args=(file, gate, answers)) for _ in range(8)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * 8
    told = [answers.get() for _ in children]
    assert sorted(map(bool, told)) == [False] * 7 + [True]
    assert "failed" not in told
    assert [claim.id for claim in ledger_at(file).claims()] == [next(filter(None, told))]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(
    "text", ["", "vm", "vm/", "vm/a/b", "pod/a/b", "pod/a//c", "vm/-a", "host/a", "vm/a b", "vm/a\n"]
)
def test_what_is_no_owner_is_refused(text: str) -> None:
    with pytest.raises(BadSpec, match="not an owner"):
        Owner(text)


@pytest.mark.parametrize(("text", "kind", "name"), [("vm/web-1", "vm", "web-1"), ("pod/a/b.c/d", "pod", "a/b.c/d")])
def test_owners(text: str, kind: str, name: str) -> None:
    assert (Owner(text).kind, Owner(text).name) == (kind, name)


def test_listing_claims_needs_no_pydantic(fast_folder: Path) -> None:
    """One is being made, by a process that has ended: that is asked too."""
    file = fast_folder / "ledger.db"
    mine = ledger_at(file)
    mine.move(take(mine, GPU).id, ClaimState.HELD, MOMENT)
    take(mine, OTHER)
    words = ["claim", "list", "--json", "--host", "laptop", "--ledger", str(file)]
    program = f"import sys; from vfioctl.app import main; main({words!r}); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    being_made, held = json.loads(done.stdout)["claims"]
    assert being_made["stale"] == "the process that was making it has ended"
    assert held["stale"].startswith("made in another boot")
    assert not {"pydantic", "rich", "hashlib"} & {*done.stderr.split()}
