"""What is published of claims for users who may not read the ledger. May not write."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from vfioctl.claims.ledger import rows


def published(db: sqlite3.Connection, boot_id: str) -> Mapping[str, object]:
    """Return what is published for users who may not read the ledger: the devices of claims and their owners, and the
    newest live claims. Rows are published as the ledger has them, without making claims of them: each change waits."""
    del boot_id
    return _published(db, rows.PUBLIC)


def published_to_group(db: sqlite3.Connection, boot_id: str) -> Mapping[str, object]:
    """Return the same for members of the group vfioctl, with labels, keys and command lines."""
    del boot_id
    return _published(db, rows.FOR_GROUP)


def _published(db: sqlite3.Connection, claims: str) -> Mapping[str, object]:
    reserved = [(*(r.subject, r.by, r.owner, r.whole, r.release), r.shared) for r in rows.reservations_in(db)]
    return {"reservations": reserved, "live": db.execute(claims, (rows.MOST_PUBLISHED,)).fetchall()}
