"""The journal of changes: done, under way, and unfinished. Takes times and boot ids as arguments; reads no clock.

Subsystems write their own records in the same transactions (`Records`)."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from vfioctl.core.caller import is_making
from vfioctl.core.change import Caller, JournalEntry, JournalState, Plan
from vfioctl.core.marks import Mark, MarkKind, marks_in
from vfioctl.core.registry import Registry
from vfioctl.core.snapshot import lock_inode, read_marks
from vfioctl.core.store import Store
from vfioctl.errors import BadDocument, Busy, Unfinished

_COLUMNS = "id, plan, state, boot_id, began, ended, why, reached, user, sudo_user, pid, command, made_for"
_BEGIN = """
    INSERT INTO journal (plan, state, boot_id, began, user, sudo_user, pid, command, made_for)
    VALUES (:plan, 'open', :boot_id, :began, :user, :sudo_user, :pid, :command, :made_for)
"""
_NAMES = (*_COLUMNS.split(", "), "is_newest")
_ROW = f"{_COLUMNS}, id = (SELECT max(id) FROM journal)"  # noqa: S608 - constants
_NEWEST = f"SELECT {_ROW} FROM journal WHERE began >= ? ORDER BY id DESC LIMIT ?"  # noqa: S608 - constants
_UNFINISHED = f"""
    SELECT {_ROW} FROM journal WHERE id IN (SELECT journal FROM under_change) ORDER BY id DESC
"""  # noqa: S608 - constants
_REFERENCES = """
    SELECT tables.name, key."from" FROM sqlite_schema AS tables JOIN pragma_foreign_key_list(tables.name) AS key
    WHERE tables.type = 'table' AND key."table" = 'journal'
"""
_UNKNOWN = Caller()


class Journal:
    """The journal of one ledger."""

    def __init__(self, store: Store, registry: Registry, publish: Callable[[], None] = lambda: None) -> None:
        """`publish`: called after each transaction that changes what ordinary users may know."""
        self.store, self._registry, self._publish = store, registry, publish

    def begin(self, plan: Plan, *, boot_id: str, now: str, caller: Caller = _UNKNOWN, acting_for: str = "") -> int:
        """Record a change before its first write; return its number. Raises Unfinished, StoreDamaged, ClaimConflict."""
        with self.store.transaction() as db:
            known = {"plan": plan.model_dump_json(), "boot_id": boot_id, "began": now, "made_for": acting_for}
            entry = db.execute(_BEGIN, known | caller.model_dump()).lastrowid
            assert entry is not None
            _take(db, entry, plan.subjects)
            for records in self._registry.records:
                records.begin(db, entry, plan, boot_id=boot_id, now=now, acting_for=acting_for)
        self._publish()
        return entry

    def end(
        self, number: int, state: JournalState, *, boot_id: str, now: str, why: str = "", plan: Plan | None = None
    ) -> None:
        """Close an entry, of this plan or the stored one. A stuck one keeps its devices. Raises StoreDamaged."""
        with self.store.transaction() as db:
            db.execute("UPDATE journal SET state = ?, ended = ?, why = ? WHERE id = ?", (state, now, why, number))
            if state != JournalState.STUCK:
                db.execute("DELETE FROM under_change WHERE journal = ?", (number,))
                if plan is None:
                    (text,) = db.execute("SELECT plan FROM journal WHERE id = ?", (number,)).fetchone()
                    plan = plan_in(self._registry, number, text)
                for records in self._registry.records:
                    records.end(db, number, plan, state, boot_id=boot_id, now=now)
        self._publish()

    def reach(self, entry: int, number: int) -> None:
        """Record that step `number` (from 1) begins, so that recovery knows that no later step was begun."""
        with self.store.transaction() as db:
            db.execute("UPDATE journal SET reached = ? WHERE id = ?", (number, entry))

    def entries(self, *, most: int = -1, since: str = "") -> tuple[JournalEntry, ...]:
        """Return at most `most` entries that began at `since` or later, the newest first; all if `most` is negative."""
        limit = min(most, sys.maxsize)  # SQLite's largest integer
        return self._settled(_NEWEST, since, limit)

    def needed(self) -> frozenset[int]:
        """Return the numbers of the entries that records refer to: unfinished ones, and what `unbind` must know."""
        return self.store.read(_needed, frozenset())

    def delete(self, entries: Iterable[JournalEntry]) -> int:
        """Delete those of the finished entries that are not needed, and return how many. Raises StoreDamaged."""
        numbers = {entry.id for entry in entries}
        with self.store.transaction() as db:
            going = [(number,) for number in numbers - _needed(db)]
            return db.executemany("DELETE FROM journal WHERE id = ?", going).rowcount if going else 0

    def unfinished(self) -> tuple[JournalEntry, ...]:
        """Return the open and the stuck changes, the newest first."""
        return self._settled(_UNFINISHED)

    def mark(self, marks: Iterable[Mark], *, boot_id: str) -> None:
        """Mark devices as wedged or dead in this boot. A new mark of a device replaces the old one."""
        with self.store.transaction() as db:
            db.executemany(
                "INSERT OR REPLACE INTO mark (subject, kind, boot_id, since, why, ticket) VALUES (?, ?, ?, ?, ?, ?)",
                [(m.address, m.kind, boot_id, m.since, m.why, m.ticket) for m in marks],
            )
        self._publish()

    def marks(self, *, boot_id: str) -> Mapping[str, Mark]:
        """Return the marks of this boot, by subject."""
        return marks_in(read_marks(self.store, boot_id=boot_id))

    def unmark(self, subjects: Iterable[str], *, boot_id: str) -> None:
        """Remove the wedged marks of these devices, and all marks of earlier boots."""
        with self.store.transaction() as db:
            db.executemany(
                "DELETE FROM mark WHERE subject = ? AND kind = ?", [(subject, MarkKind.WEDGED) for subject in subjects]
            )
            db.execute("DELETE FROM mark WHERE boot_id != ?", (boot_id,))
        self._publish()

    def _settled(self, query: str, *values: object) -> tuple[JournalEntry, ...]:
        """Return these entries, the newest first. Read again if the first ended before its process was looked at."""
        none: tuple[JournalEntry, ...] = ()

        def ask(db: sqlite3.Connection) -> tuple[JournalEntry, ...]:
            return self._entries(db.execute(query, values))

        entries = self.store.read(ask, none)
        return self.store.read(ask, none) if entries and self._has_ended(entries[0]) else entries

    def _has_ended(self, entry: JournalEntry) -> bool:
        if entry.state != JournalState.OPEN or entry.under_way or entry.caller.pid is None:
            return False
        query = "SELECT 1 FROM journal WHERE id = ? AND state = 'open'"
        return not self.store.read(lambda db: db.execute(query, (entry.id,)).fetchone(), None)

    def _entries(self, rows: sqlite3.Cursor) -> tuple[JournalEntry, ...]:
        return tuple(map(self._entry, rows.fetchall()))  # parsing plans is no part of the time that SQLite may take

    def _entry(self, row: tuple[Any, ...]) -> JournalEntry:
        columns = dict(zip(_NAMES, row, strict=True))
        caller = Caller.model_validate({name: columns.pop(name) for name in Caller.model_fields})
        plan = plan_in(self._registry, columns["id"], columns.pop("plan"))
        # each change holds the host's lock: an older one that is open was given up, whatever its process does now
        may_be = columns.pop("is_newest") and columns["state"] == JournalState.OPEN
        under_way = bool(may_be) and is_making(caller.pid, columns["began"], lock_inode(self.store))
        return JournalEntry(**columns, plan=plan, caller=caller, under_way=under_way)


def plan_in(registry: Registry, entry: int, text: str) -> Plan:
    """Read the plan of a journal entry. Raises sqlite3.DatabaseError, which the store turns into StoreDamaged."""
    try:
        return registry.read_plan(text)
    except BadDocument as error:
        raise sqlite3.DatabaseError(f"entry {entry} holds no plan: {error.message}") from None


def _needed(db: sqlite3.Connection) -> frozenset[int]:
    # every table that refers to the journal, so that the record of a new subsystem cannot be forgotten here
    columns = db.execute(_REFERENCES).fetchall()
    queries = (f'SELECT DISTINCT "{column}" FROM "{table}"' for table, column in columns)  # noqa: S608 - from the schema
    return frozenset(number for query in queries for (number,) in db.execute(query))


def _take(db: sqlite3.Connection, entry: int, subjects: Iterable[str]) -> None:
    for subject in subjects:
        try:
            db.execute("INSERT INTO under_change VALUES (?, ?)", (subject, entry))
        except sqlite3.IntegrityError:
            raise unfinished_error([subject]) from None


def unfinished_error(subjects: Iterable[str]) -> Unfinished:
    """Return the error for devices with an unfinished earlier change."""
    return Unfinished(
        f"an earlier change of {', '.join(subjects)} was interrupted",
        hint="finish it first: back to what it was, or forward with --forward",
        next_command="vfioctl recover",
    )


def under_way_error(subjects: Iterable[str], pid: int | None) -> Busy:
    """Return the error for devices that another process is changing."""
    return Busy(f"a change of {', '.join(subjects)} is under way (process {pid})", hint="wait for it to finish")
