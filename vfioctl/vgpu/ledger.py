"""Reads the ledger's records of vGPUs. Reads only. Does not import pydantic, which slows listings."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from vfioctl.core.store import Store
from vfioctl.vgpu.model.recorded import NOTHING, Recorded, TypeNames
from vfioctl.vgpu.model.vgpu import Created

if TYPE_CHECKING:
    from vfioctl.session import Session

# of earlier boots only mediated devices: an address may belong to another device now
CREATED = """
    SELECT id, card, place, since, persistent FROM vgpu
    WHERE boot_id = ? OR (persistent AND id GLOB '*-*-*-*-*') ORDER BY id, journal
"""
_WEDGED = "SELECT subject, why FROM mark WHERE kind = 'wedged' AND boot_id = ?"
_NAMES = "SELECT card, id, name FROM type_name WHERE boot_id = ?"


def read_records(store: Store, *, boot_id: str) -> Recorded:
    """The ledger's records of vGPUs, from one transaction: those of this boot, and persistent vGPUs of any boot."""

    def ask(db: sqlite3.Connection) -> Recorded:
        created, wedged, names = (db.execute(query, (boot_id,)).fetchall() for query in (CREATED, _WEDGED, _NAMES))
        return Recorded(dict(wedged), _created(created), _names(names))

    return store.read(ask, NOTHING)


def recorded(session: Session) -> Recorded:
    """The ledger's records of vGPUs on this host. Raises StoreDamaged."""
    return read_records(session.store, boot_id=session.boot_id) if session.ledger.exists() else NOTHING


def recorded_if_possible(session: Session) -> tuple[Recorded, str]:
    """The same; or no records, and why the ledger cannot be read."""
    return session.from_ledger(lambda: recorded(session), NOTHING)


def _created(rows: Iterable[tuple[str, str, str, str, int]]) -> Mapping[str, Created]:
    return {row[0]: Created(*row[:4], persistent=bool(row[4])) for row in rows}


def _names(rows: Iterable[tuple[str, str, str]]) -> TypeNames:
    found: dict[str, dict[str, str]] = {}
    for card, kind, name in rows:
        found.setdefault(card, {})[kind] = name
    return found
