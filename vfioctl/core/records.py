"""Protocol for a subsystem's tables that are written in the journal's transactions. May not hold any code."""

from __future__ import annotations

import sqlite3
from typing import Protocol

from vfioctl.core.change import JournalState, Plan


class Records(Protocol):
    """Rows of a subsystem's own tables that must stay consistent with the journal."""

    def begin(self, db: sqlite3.Connection, entry: int, plan: Plan, *, boot_id: str, now: str, acting_for: str) -> None:
        """Write what recovery must know if this process dies; called before the first write to the host.

        `acting_for`: the reservation that the change is made for (`vfioctl.core.reservations`), if any. May raise to
        refuse the change.
        """
        ...

    def end(
        self, db: sqlite3.Connection, entry: int, plan: Plan, state: JournalState, *, boot_id: str, now: str
    ) -> None:
        """Update the rows when the change ends; not called for a stuck change."""
        ...
