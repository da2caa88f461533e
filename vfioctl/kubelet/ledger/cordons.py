"""Reads and writes the ledger's records of cordoned devices: those that no pod gets. May not read the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from vfioctl.errors import StoreDamaged
from vfioctl.kubelet.model.cordon import Cordon, Cordons

if TYPE_CHECKING:
    import sqlite3

    from vfioctl.core.published import Published
    from vfioctl.core.store import Store
    from vfioctl.session import Session

_VALID = "SELECT device, kind, why, since, user FROM kubelet_cordon WHERE kind = 'cordon' OR boot_id = ? ORDER BY kind"
_INSERT = "INSERT INTO kubelet_cordon VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (device, kind) DO NOTHING"


def cordons(session: Session) -> Cordons:
    """Return the devices that are cordoned now. Raises StoreDamaged, KernelRefused."""
    boot_id = session.known_boot_id
    nothing: Sequence[Sequence[str]] = ()
    rows = session.ask_ledger(
        lambda store: store.read(lambda db: db.execute(_VALID, (boot_id,)).fetchall(), nothing), _published, nothing
    )
    return {row[0]: Cordon(*row) for row in rows}


def published(db: sqlite3.Connection, boot_id: str) -> Mapping[str, object]:
    """Return what is published for users who may not read the ledger."""
    return {"cordons": db.execute(_VALID, (boot_id,)).fetchall()}


def _published(document: Published) -> Sequence[Sequence[str]]:
    record = document.records.get("kubelet", {})
    rows = record.get("cordons", ()) if isinstance(record, dict) else ()
    if not all(isinstance(row, list) and len(row) == len(Cordon._fields) for row in rows):
        raise StoreDamaged("what is published of cordoned devices is not understood", hint="run it as root")
    return [[str(part) for part in row] for row in rows]


class CordonRecords:
    """The records of one ledger."""

    def __init__(self, store: Store, publish: Callable[[], None]) -> None:
        """`publish`: called after each transaction."""
        self._store, self._publish = store, publish

    def add(self, cordon: Cordon, boot_id: str) -> None:
        """Record a cordon, if there is none of its kind."""
        with self._store.transaction() as db:
            db.execute(_INSERT, (cordon.device, cordon.kind, cordon.why, cordon.since, boot_id, cordon.user))
        self._publish()

    def remove(self, device: str, *kinds: str) -> bool:
        """Remove the cordons of these kinds; return whether there was one."""
        with self._store.transaction() as db:
            marks = ", ".join("?" * len(kinds))
            query = f"DELETE FROM kubelet_cordon WHERE device = ? AND kind IN ({marks})"  # noqa: S608 - constants
            removed = db.execute(query, (device, *kinds)).rowcount > 0
        self._publish()
        return removed
