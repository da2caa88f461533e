"""Which host a ledger is of: a disk may be copied with the ledger on it. May not read the host."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from vfioctl.core.ledger_file import aside
from vfioctl.errors import StoreForeign

_SHOWN = 8
"""Digits of a machine-id in a message. All of them are confidential (machine-id(5))."""


def refuse_other_host(db: sqlite3.Connection, file: Path, machine_id: str) -> bool:
    """Return whether the ledger names its host. Raises StoreForeign if that is another one than `machine_id`.

    Nothing is refused if either is not known: an older ledger names none, and a container may have no machine-id.
    """
    row = db.execute("SELECT machine_id FROM host").fetchone()
    if row and machine_id and row[0] != machine_id:
        raise StoreForeign(
            f"the ledger {file} is another host's: its machine-id begins with {row[0][:_SHOWN]}, and this host's with "
            f"{machine_id[:_SHOWN]}",
            hint=f"if the disk was copied, set the ledger aside with {aside(file, 'other-host')}; if the machine-id of "
            "this host was changed, keep the ledger with vfioctl recover --this-host",
        )
    return row is not None
