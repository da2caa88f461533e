"""The vGPU subsystem's part of the ledger: created vGPUs and VFs, and names of types. Text only."""

from vfioctl.core.migrations import FIRST, Migration

MIGRATIONS = (
    Migration(
        FIRST,
        """
        CREATE TABLE vgpu (
            id TEXT NOT NULL,
            card TEXT NOT NULL,
            place TEXT NOT NULL,
            persistent INTEGER NOT NULL CHECK (persistent IN (0, 1)),
            boot_id TEXT NOT NULL,
            since TEXT NOT NULL,
            journal INTEGER NOT NULL REFERENCES journal (id),
            PRIMARY KEY (id, journal)
        ) STRICT;
        CREATE TABLE type_name (
            card TEXT NOT NULL,
            id TEXT NOT NULL,
            name TEXT NOT NULL,
            boot_id TEXT NOT NULL,
            PRIMARY KEY (card, id)
        ) STRICT;
        """,
    ),
)
