"""What a listing reads from the ledger. May not write, nor import pydantic: the listing's workers start after this.

Users who may not open the ledger read `vfioctl.core.published` instead.
"""

from __future__ import annotations

import sqlite3
from itertools import groupby

from vfioctl.core.published import Changes, MarkRow
from vfioctl.core.store import Store

_MARKS = "SELECT subject, kind, since, why, ticket FROM mark WHERE boot_id = ? ORDER BY subject"
_UNFINISHED = "SELECT journal, subject FROM under_change ORDER BY journal DESC, rowid"


def read_marks(store: Store, *, boot_id: str) -> tuple[MarkRow, ...]:
    """Return the marks of this boot, by subject. Raises StoreDamaged."""
    return store.read(lambda db: marks_in(db, boot_id), ())


def read_unfinished(store: Store) -> Changes:
    """Return the number and the subjects of each open or stuck change, the newest first. Raises StoreDamaged.

    The entries themselves are not read: a ledger keeps thousands of plans, and one that does not parse is recover's
    to report.
    """
    return store.read(unfinished_in, ())


def marks_in(db: sqlite3.Connection, boot_id: str) -> tuple[MarkRow, ...]:
    """Return the marks of this boot, by subject. Raises ValueError."""
    return tuple(map(MarkRow.checked, db.execute(_MARKS, (boot_id,))))


def unfinished_in(db: sqlite3.Connection) -> Changes:
    """Return the unfinished changes, the newest first."""
    rows = groupby(db.execute(_UNFINISHED), key=lambda row: row[0])
    return tuple((number, tuple(subject for _, subject in alike)) for number, alike in rows)
