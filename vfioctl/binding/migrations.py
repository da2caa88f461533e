"""The binding subsystem's ledger tables: each function's binding before vfioctl changed it. Holds SQL text only."""

from vfioctl.core.migrations import FIRST, Migration

MIGRATIONS = (
    Migration(
        FIRST,
        """
        CREATE TABLE previous (
            address TEXT PRIMARY KEY,
            identity TEXT NOT NULL,
            boot_id TEXT NOT NULL,
            driver TEXT,
            driver_override TEXT,
            journal INTEGER NOT NULL REFERENCES journal (id)
        ) STRICT;
        """,
    ),
)
