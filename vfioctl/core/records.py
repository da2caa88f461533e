"""Protocol for a subsystem's tables that are written in the journal's transactions. May not hold any code."""

from __future__ import annotations

import sqlite3
from typing import Protocol

from vfioctl.core.change import JournalState, Plan


class Records(Protocol):
    """Rows of a subsystem's own tables that must stay consistent with the journal."""

    def begin(self, db: sqlite3.Connection, entry: int, plan: Plan, *, boot_id: str, now: str) -> None:
        """Write what recovery must know if this process dies; called before the first write to the host."""
        ...

    def end(self, db: sqlite3.Connection, entry: int, plan: Plan, state: JournalState) -> None:
        """Update the rows when the change ends; not called for a stuck change."""
        ...
