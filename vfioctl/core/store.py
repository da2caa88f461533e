"""The store: one SQLite file with the journal and what each device was before. Touches that file only.

Everything that must be true together is written in one transaction. A device cannot be under two open
changes at once: the database itself refuses it, not only the code.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from vfioctl.errors import StoreDamaged

T = TypeVar("T")

_MIGRATIONS = (
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
    CREATE TABLE previous (
        address TEXT PRIMARY KEY,
        identity TEXT NOT NULL,
        boot_id TEXT NOT NULL,
        driver TEXT,
        driver_override TEXT,
        journal INTEGER NOT NULL REFERENCES journal (id)
    ) STRICT;
    """,
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
    """
    ALTER TABLE journal ADD COLUMN reached INTEGER;
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
    "ALTER TABLE slice RENAME TO vgpu;",
)


class Store:
    """The file, opened at the first question. Reading needs no write permission; a missing file is an empty store."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._open: sqlite3.Connection | None = None

    @property
    def lock_file(self) -> Path:
        return self.file.with_name(self.file.name + ".lock")

    def read(self, ask: Callable[[sqlite3.Connection], T], empty: T) -> T:
        """`ask`'s answer; `empty` where there is no store yet. Raises StoreDamaged."""
        with _explained(self.file):
            if self._open:
                return ask(self._open)
            if not self.file.exists():
                return empty
            connection = _open_for_reading(self.file)
            try:
                return ask(connection)
            finally:
                connection.close()

    @contextmanager
    def kept_open(self) -> Iterator[None]:
        """One connection for all that is asked and written meanwhile: to open one takes longer than to use it.

        Raises StoreDamaged.
        """
        with _explained(self.file):
            self._open = self._connected()
        try:
            yield
        finally:
            self._open.close()
            self._open = None

    def _connected(self) -> sqlite3.Connection:
        self.file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        connection = sqlite3.connect(self.file, timeout=10, isolation_level=None)
        try:
            _prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """One transaction: on disk when it ends, or not at all. Raises StoreDamaged."""
        with _explained(self.file):
            connection = self._open or self._connected()
            try:
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield connection
                    connection.execute("COMMIT")
                except BaseException:
                    connection.rollback()
                    raise
            finally:
                if connection is not self._open:
                    connection.close()


def _prepare(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    if _check_version(connection) < len(_MIGRATIONS):
        _upgrade(connection)


def _upgrade(connection: sqlite3.Connection) -> None:
    """All at once. Somebody else may be about to: how far it is, is asked again with the lock in hand."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        for script in _MIGRATIONS[_check_version(connection) :]:
            for statement in filter(str.strip, script.split(";")):
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {len(_MIGRATIONS)}")
        connection.execute("COMMIT")
    except BaseException:
        connection.rollback()
        raise


def _check_version(connection: sqlite3.Connection) -> int:
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version == 0 and connection.execute("SELECT 1 FROM sqlite_schema").fetchone():
        raise sqlite3.DatabaseError("it is another program's database")
    if version > len(_MIGRATIONS):
        raise sqlite3.DatabaseError(f"it is of version {version}, written by a newer vfioctl")
    return version


def _open_for_reading(file: Path) -> sqlite3.Connection:
    """Read-only. Without write permission SQLite cannot make the WAL's index, and needs none when the WAL is empty."""
    try:
        return _opened(file, "mode=ro")
    except sqlite3.OperationalError:
        wal = file.with_name(f"{file.name}-wal")
        if wal.exists() and wal.stat().st_size:
            raise  # without it the newest entries would be missing, and nobody would know
        return _opened(file, "mode=ro&immutable=1")


def _opened(file: Path, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{file.absolute().as_uri()}?{mode}", uri=True, timeout=10)
    try:
        version = _check_version(connection)
    except sqlite3.Error:
        connection.close()
        raise
    if version == len(_MIGRATIONS):
        return connection
    # One that an older vfioctl wrote is read as the newer would have it, and stays as it is.
    newer = sqlite3.connect(":memory:", isolation_level=None)
    if version:
        connection.backup(newer)
    connection.close()
    _prepare(newer)
    return newer


@contextmanager
def _explained(file: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        raise StoreDamaged(
            f"the ledger {file} cannot be used: {error}",
            hint="check its permissions and the space on its file system, or name another --ledger",
        ) from None
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # SQLite quotes damaged names as they are
        raise StoreDamaged(
            f"the ledger {file} is damaged: {error}",
            hint=f"set it aside with mv {file} {file}.damaged; what devices were before is then unknown, and unbind "
            "leaves it to the kernel",
        ) from None
    except OSError as error:
        raise StoreDamaged(f"the ledger {file} cannot be used: {error.strerror}", hint="run it as root") from None
