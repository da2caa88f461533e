"""What a listing reads from the ledger. May not write, nor import pydantic: the listing's workers start after this."""

from __future__ import annotations

import sqlite3
from itertools import groupby
from typing import NamedTuple

from vfioctl.core.store import Store

_MARKS = "SELECT subject, kind, since, why, ticket FROM mark WHERE boot_id = ? ORDER BY subject"
_UNFINISHED = "SELECT journal, subject FROM under_change ORDER BY journal DESC, rowid"


class MarkRow(NamedTuple):
    """A mark as the ledger holds it; see `Mark`."""

    subject: str
    kind: str
    since: str
    why: str
    ticket: str


def read_marks(store: Store, *, boot_id: str) -> tuple[MarkRow, ...]:
    """Return the marks of this boot, by subject. Raises StoreDamaged."""
    return store.read(lambda db: tuple(map(_mark, db.execute(_MARKS, (boot_id,)))), ())


def _mark(columns: tuple[str, ...]) -> MarkRow:
    row = MarkRow._make(columns)
    if row.kind not in ("wedged", "dead"):
        raise ValueError(f"{row.kind[:40]!r} is no kind of mark")
    return row


def read_unfinished(store: Store) -> tuple[tuple[str, ...], ...]:
    """Return the subjects of each open or stuck change, the newest change first. Raises StoreDamaged.

    The entries themselves are not read: a ledger keeps thousands of plans, and one that does not parse is recover's
    to report.
    """

    def ask(db: sqlite3.Connection) -> tuple[tuple[str, ...], ...]:
        rows = db.execute(_UNFINISHED)
        return tuple(tuple(subject for _, subject in alike) for _, alike in groupby(rows, key=lambda row: row[0]))

    return store.read(ask, ())
