"""What a listing of vGPUs asks of the ledger. Reads only, and imports no pydantic: a listing is to be quick."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from vfioctl.core.store import Store
from vfioctl.vgpu.model.vgpu import Made

BOOT_ID = "/proc/sys/kernel/random/boot_id"
Names = Mapping[str, Mapping[str, str]]
"""By card and id, what types are called: the kernel lists only those that can still be made."""

# of another boot only what has a name of its own: an address is anybody's again
_MADE = """
    SELECT id, card, place, since, kept FROM vgpu WHERE boot_id = ? OR (kept AND id GLOB '*-*-*-*-*')
    ORDER BY id, journal
"""
_WEDGED = "SELECT address, why FROM mark WHERE kind = 'wedged' AND boot_id = ?"
_NAMES = "SELECT card, id, name FROM type_name WHERE boot_id = ?"


class LedgerSnapshot:
    """Of one ledger, in one boot, read once. Every method raises StoreDamaged."""

    def __init__(self, store: Store, *, boot_id: str) -> None:
        self._store, self._boot = store, (boot_id,)

    def made(self) -> Mapping[str, Made]:
        """The vGPUs that vfioctl made and that may still be there, by id; those that are kept, of any boot."""
        return {row[0]: Made(*row[:4], kept=bool(row[4])) for row in self._rows[0]}

    def wedged(self) -> Mapping[str, str]:
        """Functions and mediated devices that a write never returned from, and which write."""
        return dict(self._rows[1])

    def type_names(self) -> Names:
        """What types were called when they were last seen."""
        found: dict[str, dict[str, str]] = {}
        for card, kind, name in self._rows[2]:
            found.setdefault(card, {})[kind] = name
        return found

    @cached_property
    def _rows(self) -> tuple[list[tuple[str, str, str, str, int]], list[tuple[str, str]], list[tuple[str, str, str]]]:
        def ask(db: sqlite3.Connection) -> tuple[list[Any], list[Any], list[Any]]:
            made, wedged, names = (db.execute(query, self._boot).fetchall() for query in (_MADE, _WEDGED, _NAMES))
            return made, wedged, names

        return self._store.read(ask, ([], [], []))
