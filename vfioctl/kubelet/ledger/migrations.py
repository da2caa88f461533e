"""The device plugin's part of the ledger. Text only."""

from vfioctl.core.migrations import Migration

MIGRATIONS = (
    Migration(
        8,
        """
        CREATE TABLE kubelet_cordon (
            device TEXT NOT NULL,
            kind TEXT NOT NULL CHECK (kind IN ('cordon', 'xid')),
            why TEXT NOT NULL,
            since TEXT NOT NULL,
            boot_id TEXT NOT NULL,
            user TEXT NOT NULL,
            PRIMARY KEY (device, kind)
        ) STRICT;
        """,
    ),
)
