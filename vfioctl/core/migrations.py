"""The migrations of the ledger's schema, and the core's own: tables of the journal, of open changes and of marks."""

from __future__ import annotations

from typing import NamedTuple


class Migration(NamedTuple):
    """One migration of the ledger's schema. Those of one version run in one transaction, in the order of the table."""

    version: int
    script: str = ""
    """SQL statements, each terminated by a semicolon."""
    run: str = ""
    """A function, as `module:name`, that is called with the connection after the script."""


MIGRATIONS = (
    Migration(
        1,
        """
        CREATE TABLE journal (
            id INTEGER PRIMARY KEY,
            plan TEXT NOT NULL,
            state TEXT NOT NULL CHECK (state IN ('open', 'done', 'back', 'stuck', 'rebooted')),
            boot_id TEXT NOT NULL,
            began TEXT NOT NULL,
            ended TEXT,
            why TEXT NOT NULL DEFAULT ''
        ) STRICT;
        CREATE TABLE under_change (
            address TEXT PRIMARY KEY,
            journal INTEGER NOT NULL REFERENCES journal (id)
        ) STRICT;
        """,
    ),
    Migration(
        2,
        """
        CREATE TABLE mark (
            address TEXT PRIMARY KEY,
            kind TEXT NOT NULL CHECK (kind IN ('wedged', 'dead')),
            boot_id TEXT NOT NULL,
            since TEXT NOT NULL,
            why TEXT NOT NULL,
            ticket TEXT NOT NULL DEFAULT ''
        ) STRICT;
        """,
    ),
    Migration(3, "ALTER TABLE journal ADD COLUMN reached INTEGER;"),
    Migration(
        4,
        """
        ALTER TABLE under_change RENAME COLUMN address TO subject;
        ALTER TABLE mark RENAME COLUMN address TO subject;
        """,
    ),
    Migration(
        5,
        """
        ALTER TABLE journal ADD COLUMN user TEXT NOT NULL DEFAULT '';
        ALTER TABLE journal ADD COLUMN sudo_user TEXT NOT NULL DEFAULT '';
        ALTER TABLE journal ADD COLUMN pid INTEGER;
        ALTER TABLE journal ADD COLUMN command TEXT NOT NULL DEFAULT '';
        """,
    ),
    Migration(6, "ALTER TABLE journal ADD COLUMN made_for TEXT NOT NULL DEFAULT '';"),
)
"""The core's migrations. Subsystems contribute theirs with the same version numbers."""
