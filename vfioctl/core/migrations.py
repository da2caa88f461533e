"""The migrations of the ledger's schema, and the core's own: its host, the journal, open changes and marks."""

from __future__ import annotations

from typing import NamedTuple

FIRST = 6
"""The version of the first release whose ledgers are kept, vfioctl 0.2. Ledgers of earlier versions are refused."""


class Migration(NamedTuple):
    """One migration of the ledger's schema. Those of one version run in one transaction, in the order of the table."""

    version: int
    """`FIRST` or later."""
    script: str
    """SQL statements, each terminated by a semicolon."""


MIGRATIONS = (
    Migration(
        FIRST,
        """
        CREATE TABLE journal (
            id INTEGER PRIMARY KEY,
            plan TEXT NOT NULL,
            state TEXT NOT NULL CHECK (state IN ('open', 'done', 'back', 'stuck', 'rebooted')),
            boot_id TEXT NOT NULL,
            began TEXT NOT NULL,
            ended TEXT,
            why TEXT NOT NULL DEFAULT '',
            reached INTEGER,
            user TEXT NOT NULL DEFAULT '',
            sudo_user TEXT NOT NULL DEFAULT '',
            pid INTEGER,
            command TEXT NOT NULL DEFAULT '',
            made_for TEXT NOT NULL DEFAULT ''
        ) STRICT;
        CREATE TABLE under_change (
            subject TEXT PRIMARY KEY,
            journal INTEGER NOT NULL REFERENCES journal (id)
        ) STRICT;
        CREATE TABLE mark (
            subject TEXT PRIMARY KEY,
            kind TEXT NOT NULL CHECK (kind IN ('wedged', 'dead')),
            boot_id TEXT NOT NULL,
            since TEXT NOT NULL,
            why TEXT NOT NULL,
            ticket TEXT NOT NULL DEFAULT ''
        ) STRICT;
        """,
    ),
    Migration(7, "CREATE TABLE host (machine_id TEXT PRIMARY KEY) STRICT;"),
)
"""The core's migrations. Subsystems contribute theirs with the same version numbers."""
