"""The journal and the records of what was before, as rows of the store. Takes times and boot ids as arguments."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence

from vfioctl.core.change import Binding, Fact, JournalEntry, JournalState, Plan, Verb
from vfioctl.core.setting import NO_VGPU, VF_COUNTS, Setting, SettingKind
from vfioctl.core.snapshot import Names
from vfioctl.core.store import Store
from vfioctl.errors import Unfinished
from vfioctl.inventory.model.functions import Mark, MarkKind, is_vfio_driver
from vfioctl.inventory.model.values import PciAddress, Subject, subject

_NEWEST = "SELECT id, plan, state, boot_id, began, ended, why FROM journal ORDER BY id DESC LIMIT ?"
_UNFINISHED = (
    "SELECT id, plan, state, boot_id, began, ended, why FROM journal WHERE state IN ('open', 'stuck') ORDER BY id DESC"
)
_MARKS = "SELECT address, kind, since, why, ticket FROM mark WHERE boot_id = ? ORDER BY address"
_SETTINGS = """
    SELECT journal.id, previous.address, journal.plan FROM journal JOIN previous ON previous.journal = journal.id
    WHERE previous.boot_id = ? ORDER BY journal.id
"""
_RECORDS = "SELECT address, identity, driver, driver_override FROM previous WHERE boot_id = ?"
# A device that somebody took from VFIO by hand, and that has no driver now, still came from where the record says.
_REMEMBER = """
    INSERT INTO previous (address, identity, boot_id, driver, driver_override, journal) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (address) DO UPDATE SET
        identity = excluded.identity, boot_id = excluded.boot_id, driver = excluded.driver,
        driver_override = excluded.driver_override, journal = excluded.journal
    WHERE excluded.driver IS NOT NULL OR identity != excluded.identity OR boot_id != excluded.boot_id
"""
# Beside what was there before, which counts again if this one is undone. A definition stays whoever makes the vGPU.
_OWN = """
    INSERT INTO vgpu (id, card, place, kept, boot_id, since, journal)
    VALUES (?1, ?2, ?3, max(?4, EXISTS (SELECT 1 FROM vgpu WHERE id = ?1 AND kept)), ?5, ?6, ?7)
"""
_REPLACED = "DELETE FROM vgpu WHERE journal < ?1 AND id IN (SELECT id FROM vgpu WHERE journal = ?1)"
NO_NAMES: Names = {}
_Record = tuple[str, str, str | None, str | None]


class Journal:
    """What vfioctl has done, is doing, and must be able to undo."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def begin(self, plan: Plan, *, boot_id: str, now: str, names: Names = NO_NAMES) -> int:
        """Promises a change before the first write, with what it was before. Raises Unfinished.

        `names`: what the types of its cards are called, for when the kernel does not list them any more.
        """
        with self.store.transaction() as db:
            entry = db.execute(
                "INSERT INTO journal (plan, state, boot_id, began) VALUES (?, 'open', ?, ?)",
                (plan.model_dump_json(), boot_id, now),
            ).lastrowid
            assert entry is not None
            _take(db, entry, plan.subjects)
            if plan.intent.verb == Verb.BIND:
                _record(db, entry, plan, boot_id)
            db.execute("DELETE FROM vgpu WHERE boot_id != ? AND NOT kept", (boot_id,))
            called = ((card, kind, name, boot_id) for card, of_it in names.items() for kind, name in of_it.items())
            db.executemany("INSERT OR REPLACE INTO type_name VALUES (?, ?, ?, ?)", called)
            db.executemany(_OWN, [(*made, boot_id, now, entry) for made in _to_be_made(plan)])
            return entry

    def end(
        self, entry: JournalEntry | int, state: JournalState, *, now: str, why: str = "", plan: Plan | None = None
    ) -> None:
        """The last word on a change; a stuck one keeps its devices. `plan`: the entry's, where it is at hand."""
        number = entry if isinstance(entry, int) else entry.id
        with self.store.transaction() as db:
            db.execute("UPDATE journal SET state = ?, ended = ?, why = ? WHERE id = ?", (state, now, why, number))
            if state == JournalState.STUCK:
                return
            taken = db.execute("DELETE FROM under_change WHERE journal = ? RETURNING address", (number,)).fetchall()
            plan = plan or _plan_of(db, number)
            _forget(db, number, taken, state, plan)
            if state == JournalState.DONE:
                db.execute(_REPLACED, (number,))
                db.executemany("DELETE FROM vgpu WHERE id = ?", [(gone,) for gone in _removed(plan)])
            else:
                db.execute("DELETE FROM vgpu WHERE journal = ?", (number,))

    def reach(self, entry: int, number: int) -> None:
        """Promises the step of that number: a later one was not come to, should this be the last word."""
        with self.store.transaction() as db:
            db.execute("UPDATE journal SET reached = ? WHERE id = ?", (number, entry))

    def reached(self, entry: int) -> int | None:
        """How far a change had come, where that was noted."""
        asked: tuple[int | None] | None = self.store.read(
            lambda db: db.execute("SELECT reached FROM journal WHERE id = ?", (entry,)).fetchone(), None
        )
        return asked[0] if asked else None

    def entries(self, *, most: int = -1) -> tuple[JournalEntry, ...]:
        """The newest first."""
        return self.store.read(lambda db: tuple(_entry(row) for row in db.execute(_NEWEST, (most,))), ())

    def unfinished(self) -> tuple[JournalEntry, ...]:
        """Open and stuck changes, the newest first."""
        return self.store.read(lambda db: tuple(_entry(row) for row in db.execute(_UNFINISHED)), ())

    def mark(self, marks: Iterable[Mark], *, boot_id: str) -> None:
        """Says something against devices, in this boot; the last word on each counts."""
        with self.store.transaction() as db:
            db.executemany(
                "INSERT OR REPLACE INTO mark (address, kind, boot_id, since, why, ticket) VALUES (?, ?, ?, ?, ?, ?)",
                [(m.address, m.kind, boot_id, m.since, m.why, m.ticket) for m in marks],
            )

    def marks(self, *, boot_id: str) -> Mapping[Subject, Mark]:
        """What is said against devices, by address."""
        rows: list[tuple[str, ...]] = self.store.read(lambda db: db.execute(_MARKS, (boot_id,)).fetchall(), [])
        found = (
            Mark(address=subject(address), kind=MarkKind(kind), since=since, why=why, ticket=ticket)
            for address, kind, since, why, ticket in rows
        )
        return {mark.address: mark for mark in found}

    def unmark(self, addresses: Iterable[Subject], *, boot_id: str) -> None:
        """They are wedged no more; forgets what was said before the last boot."""
        with self.store.transaction() as db:
            db.executemany(
                "DELETE FROM mark WHERE address = ? AND kind = ?", [(address, MarkKind.WEDGED) for address in addresses]
            )
            db.execute("DELETE FROM mark WHERE boot_id != ?", (boot_id,))

    def settings(self, *, boot_id: str) -> tuple[Setting, ...]:
        """What was set when the devices that are recorded went to VFIO, in this boot."""
        rows: list[tuple[int, str, str]] = self.store.read(lambda db: db.execute(_SETTINGS, (boot_id,)).fetchall(), [])
        return tuple(s for number, address, plan in rows for s in _plan(number, plan).settings if s.address == address)

    def records(self, identities: Mapping[PciAddress, str], *, boot_id: str) -> Mapping[PciAddress, Binding]:
        """What those devices were before vfioctl took them, in this boot; another device there now has no record."""
        rows: list[_Record] = self.store.read(lambda db: db.execute(_RECORDS, (boot_id,)).fetchall(), [])
        return {
            PciAddress(address): Binding(driver=driver, driver_override=override)
            for address, identity, driver, override in rows
            if identities.get(PciAddress(address)) == identity
        }


def _take(db: sqlite3.Connection, entry: int, subjects: Iterable[Subject]) -> None:
    for each in subjects:
        try:
            db.execute("INSERT INTO under_change VALUES (?, ?)", (each, entry))
        except sqlite3.IntegrityError:
            raise Unfinished(
                f"an earlier change of {each} was cut short",
                hint="finish it first: back to what it was, or forward with --forward",
                next_command="vfioctl recover",
            ) from None


def _record(db: sqlite3.Connection, entry: int, plan: Plan, boot_id: str) -> None:
    """Keeps what each device was, unless it was on VFIO already: an older record still tells where it came from."""
    facts: Mapping[PciAddress, Fact] = {fact.address: fact for fact in plan.facts}
    for change in plan.changes:
        if change.before.driver and is_vfio_driver(change.before.driver):
            continue
        db.execute(
            _REMEMBER,
            (
                change.address,
                facts[change.address].identity,
                boot_id,
                change.before.driver,
                change.before.driver_override,
                entry,
            ),
        )


def _forget(
    db: sqlite3.Connection, entry: int, addresses: Sequence[tuple[str]], state: JournalState, plan: Plan
) -> None:
    """A bind that was undone needs no record of its own, nor does a device that has been returned."""
    returned = plan.intent.verb == Verb.UNBIND and state == JournalState.DONE
    if returned:
        db.executemany("DELETE FROM previous WHERE address = ?", addresses)
    if state in (JournalState.BACK, JournalState.REBOOTED):
        db.execute("DELETE FROM previous WHERE journal = ?", (entry,))


def _to_be_made(plan: Plan) -> Iterator[tuple[str, str, str, bool]]:
    """Id, card, place, and whether it is kept, of each vGPU and of VFs that the plan makes."""
    kept = {setting.address for setting in plan.settings if setting.kind == SettingKind.KEPT and setting.after}
    (card, *_) = plan.cards or ("",)
    for setting in plan.settings:
        made = (setting.is_vgpu or setting.kind in VF_COUNTS) and setting.before != setting.after
        if made and setting.after not in NO_VGPU:
            place = f"{setting.address}/{setting.after}" if setting.kind == SettingKind.VGPU_TYPE else setting.after
            yield setting.address, card, place, setting.address in kept


def _removed(plan: Plan) -> Iterator[str]:
    for setting in plan.settings:
        if setting.removes or (setting.kind in VF_COUNTS and setting.after == "0"):
            yield setting.address


def _plan_of(db: sqlite3.Connection, entry: int) -> Plan:
    (text,) = db.execute("SELECT plan FROM journal WHERE id = ?", (entry,)).fetchone()
    return _plan(entry, text)


def _entry(row: tuple[int, str, str, str, str, str | None, str]) -> JournalEntry:
    number, plan, state, boot_id, began, ended, why = row
    return JournalEntry(
        id=number,
        plan=_plan(number, plan),
        state=JournalState(state),
        boot_id=boot_id,
        began=began,
        ended=ended,
        why=why,
    )


def _plan(entry: int, text: str) -> Plan:
    try:
        return Plan.model_validate_json(text)
    except ValueError as error:
        raise sqlite3.DatabaseError(f"entry {entry} holds no plan: {str(error).splitlines()[-1]}") from None
