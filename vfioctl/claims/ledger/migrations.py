"""The claims' part of the ledger. Text only. What a claim takes is exclusive by these tables alone: a resource is taken
as a whole by one claim, or is shared; only a shared one can have parts (a row of `claim_part` refers to its mode). The
shares of one GPU are added up in `claim_shared`, whose checks refuse more than all of it."""

from vfioctl.core.migrations import FIRST, Migration

MIGRATIONS = (
    Migration(
        FIRST,
        """
        CREATE TABLE claim (
            id TEXT PRIMARY KEY,
            owner TEXT NOT NULL,
            state TEXT NOT NULL
                CHECK (state IN ('reserved', 'held', 'releasing', 'wedged', 'released', 'failed')),
            request TEXT NOT NULL,
            key TEXT NOT NULL,
            devices TEXT NOT NULL,
            cpus TEXT NOT NULL,
            hugepages TEXT NOT NULL,
            labels TEXT NOT NULL,
            since TEXT NOT NULL,
            boot_id TEXT NOT NULL,
            expires TEXT,
            ended TEXT,
            plans TEXT NOT NULL DEFAULT '',
            why TEXT NOT NULL DEFAULT '',
            user TEXT NOT NULL,
            sudo_user TEXT NOT NULL,
            pid INTEGER,
            command TEXT NOT NULL
        ) STRICT;
        CREATE TABLE claim_live (
            claim TEXT PRIMARY KEY REFERENCES claim (id),
            key TEXT UNIQUE
        ) STRICT;
        CREATE TABLE claim_use (
            resource TEXT PRIMARY KEY,
            mode TEXT NOT NULL CHECK (mode IN ('whole', 'shared')),
            claim TEXT REFERENCES claim_live (claim),
            UNIQUE (resource, mode),
            CHECK ((mode = 'whole') = (claim IS NOT NULL))
        ) STRICT;
        CREATE TABLE claim_part (
            claim TEXT NOT NULL REFERENCES claim_live (claim),
            resource TEXT NOT NULL,
            mode TEXT NOT NULL CHECK (mode = 'shared'),
            PRIMARY KEY (claim, resource),
            FOREIGN KEY (resource, mode) REFERENCES claim_use (resource, mode)
        ) STRICT;
        CREATE TABLE claim_change (
            journal INTEGER PRIMARY KEY REFERENCES journal (id),
            claim TEXT NOT NULL REFERENCES claim (id),
            releases INTEGER NOT NULL CHECK (releases IN (0, 1))
        ) STRICT;
        CREATE TABLE claim_event (
            number INTEGER PRIMARY KEY,
            claim TEXT NOT NULL REFERENCES claim (id),
            state TEXT NOT NULL,
            owner TEXT NOT NULL,
            at TEXT NOT NULL,
            boot_id TEXT NOT NULL,
            user TEXT NOT NULL,
            sudo_user TEXT NOT NULL,
            pid INTEGER,
            command TEXT NOT NULL,
            plan TEXT NOT NULL,
            why TEXT NOT NULL
        ) STRICT;
        """,
    ),
    Migration(
        9,
        """
        ALTER TABLE claim ADD COLUMN shares TEXT NOT NULL DEFAULT '[]';
        CREATE TABLE claim_shared (
            gpu TEXT PRIMARY KEY,
            cores INTEGER NOT NULL CHECK (cores BETWEEN 0 AND 100),
            memory INTEGER NOT NULL,
            total INTEGER NOT NULL,
            CHECK (memory BETWEEN 0 AND total)
        ) STRICT;
        """,
    ),
)
