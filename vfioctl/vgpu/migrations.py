"""The vGPU subsystem's part of the ledger: created vGPUs and VFs, and names of types. Text only."""

from vfioctl.core.migrations import Migration

MIGRATIONS = (
    Migration(
        3,
        """
        CREATE TABLE slice (
            id TEXT NOT NULL,
            card TEXT NOT NULL,
            place TEXT NOT NULL,
            kept INTEGER NOT NULL CHECK (kept IN (0, 1)),
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
    Migration(
        4,
        """
        ALTER TABLE slice RENAME TO vgpu;
        ALTER TABLE vgpu RENAME COLUMN kept TO persistent;
        """,
    ),
)
