"""Reads the ledger's records of vGPUs. Reads only. Does not import pydantic, which slows listings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from vfioctl.errors import StoreDamaged
from vfioctl.vgpu.model.vgpu import Created, TypeNames

if TYPE_CHECKING:
    import sqlite3

    from vfioctl.core.published import Published
    from vfioctl.core.store import Store
    from vfioctl.session import Session

# of earlier boots only mediated devices: an address may belong to another device now
CREATED = """
    SELECT id, card, place, since, persistent FROM vgpu
    WHERE boot_id = ? OR (persistent AND id GLOB '*-*-*-*-*') ORDER BY id, journal
"""
_WEDGED = "SELECT subject, why FROM mark WHERE kind = 'wedged' AND boot_id = ?"
_NAMES = "SELECT card, id, name FROM type_name WHERE boot_id = ?"


class Recorded(NamedTuple):
    """All records about vGPUs that are valid in the current boot."""

    wedged: Mapping[str, str]
    """Functions and mediated devices with a write that never returned, and that write."""
    created: Mapping[str, Created]
    """The vGPUs and VFs that vfioctl created in this boot, by id, and the persistent mdevs of any boot."""
    names: TypeNames
    """The names that types had when they were last listed."""


NOTHING = Recorded({}, {}, {})


def read_records(store: Store, *, boot_id: str) -> Recorded:
    """The ledger's records of vGPUs, from one transaction: those of this boot, and persistent vGPUs of any boot."""

    def ask(db: sqlite3.Connection) -> Recorded:
        created, wedged, names = (db.execute(query, (boot_id,)).fetchall() for query in (CREATED, _WEDGED, _NAMES))
        return Recorded(dict(wedged), _created(created), _names(names))

    return store.read(ask, NOTHING)


def published(db: sqlite3.Connection, boot_id: str) -> Mapping[str, Sequence[Sequence[object]]]:
    """What is published for users who may not read the ledger: created vGPUs, and names of types."""
    return {name: db.execute(query, (boot_id,)).fetchall() for name, query in (("created", CREATED), ("names", _NAMES))}


def recorded(session: Session) -> Recorded:
    """The ledger's records of vGPUs on this host. Raises StoreDamaged, KernelRefused."""
    return session.ask_ledger(lambda store: read_records(store, boot_id=session.boot_id), _published, NOTHING)


def _published(document: Published) -> Recorded:
    records: Any = document.records.get("vgpu")
    wedged = {mark.subject: mark.why for mark in document.marks if mark.kind == "wedged"}
    try:
        return Recorded(wedged, _created(records["created"]), _names(records["names"]))
    except (TypeError, LookupError, ValueError):
        raise StoreDamaged("what root publishes of the ledger has no records of vGPUs") from None


def recorded_if_possible(session: Session) -> tuple[Recorded, str]:
    """The same; or no records, and why the ledger cannot be read."""
    return session.from_ledger(lambda: recorded(session), NOTHING)


def _created(rows: Iterable[tuple[str, str, str, str, int]]) -> Mapping[str, Created]:
    return {row[0]: Created(*row[:4], persistent=bool(row[4])) for row in rows}


def _names(rows: Iterable[tuple[str, str, str]]) -> TypeNames:
    names: dict[str, dict[str, str]] = {}
    for card, kind, name in rows:
        names.setdefault(card, {})[kind] = name
    return names
