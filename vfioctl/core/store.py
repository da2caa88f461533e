"""The store (the ledger): one SQLite file with the journal and the subsystems' records. May touch no other file.

Related rows are written in one transaction. A constraint in the database keeps a device from being part of two open
changes. Only the file's owner may open it: whoever may read a database can lock it, too."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from copy import copy
from pathlib import Path
from typing import TypeVar

from vfioctl.core.guarded import SECONDS, bounded, guarded, refuse_unexpected, tables_of
from vfioctl.core.ledger_file import LedgerFile, aside, refuse_other_host
from vfioctl.core.migrations import FIRST, MIGRATIONS, Migration
from vfioctl.errors import Busy, StoreDamaged, StoreNewer, StoreOlder
from vfioctl.kernel.trusted import KEEP_TO_ROOT, Untrusted

T = TypeVar("T")
_PAUSE = 0.005
_MAGIC = b"SQLite format 3\0"
"""The first bytes of an SQLite file (Database File Format, 1.3)."""
_UNKNOWN = "what devices were before is then unknown, and unbind leaves it to the kernel"


class _OtherFile(sqlite3.DatabaseError):
    """The file is no ledger: nobody should be told to move it."""


class _Connections(threading.local):
    """The open connection of each thread: an SQLite connection belongs to the thread that opened it."""

    def __init__(self) -> None:
        self.open: sqlite3.Connection | None = None


class Store:
    """The ledger file, opened on first use. Reading needs no write permission; a missing file is an empty store."""

    def __init__(
        self,
        file: Path,
        migrations: Iterable[Migration] = (),
        *,
        own_directory: bool = False,
        published: Path | None = None,
        machine_id: Callable[[], str] = str,
    ) -> None:
        """`migrations`: the subsystems' migrations, in the order of the table of subsystems.

        `own_directory`: the file's directory is the ledger's alone, and no other user may enter it. `published`: see
        `LedgerFile`. `machine_id`: returns the host's, which the ledger must be of; empty if it is not known."""
        self.file, self._machine_id = file, machine_id
        self._ledger = LedgerFile(file, own_directory=own_directory, published=published)
        self._migrations = tuple(sorted((*MIGRATIONS, *migrations), key=lambda migration: migration.version))
        self._local = _Connections()

    @property
    def lock_file(self) -> Path:
        return self.file.with_name(self.file.name + ".lock")

    def read(self, ask: Callable[[sqlite3.Connection], T], empty: T) -> T:
        """Return `ask(connection)`, or `empty` without a file. Raises StoreDamaged, also for a ValueError of `ask`."""
        with _explained(self.file):
            opened: AbstractContextManager[sqlite3.Connection]
            if self._local.open:
                opened = nullcontext(self._local.open)
            elif place := self._ledger.found():
                opened = closing(self._open_for_reading(place))
            else:
                return empty
            with opened as connection, bounded(connection):
                return _answer(ask, connection)

    def refuse_unwritable(self) -> None:
        """Raise StoreDamaged if the ledger cannot be used for changes, as far as that shows without writing."""
        self.read(lambda db: db.execute("SELECT 1 FROM journal LIMIT 1").fetchone(), None)
        with _explained(self.file):
            self._ledger.refuse_unwritable()

    @property
    def version(self) -> int:
        """The schema version that this release writes."""
        return self._migrations[-1].version

    @contextmanager
    def one_connection(self) -> Iterator[None]:
        """Keep one connection of this thread open, as opening costs more than using it. Raises StoreDamaged."""
        if self._local.open:  # an enclosing block keeps it open
            yield
            return
        with _explained(self.file):
            self._local.open = self._connected()
        try:
            yield
        finally:
            self._local.open.close()
            self._local.open = None

    def _connected(self) -> sqlite3.Connection:
        connection = guarded(sqlite3.connect(self._ledger.made(), timeout=SECONDS, isolation_level=None))
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run one transaction: committed at the end, or rolled back on an exception. Raises StoreDamaged, Busy."""
        with _explained(self.file):
            connection = self._local.open or self._connected()
            try:
                with bounded(connection, interruptible=False):
                    _begin(connection, self.file)
                    try:
                        yield connection
                        connection.execute("COMMIT")
                    except BaseException:
                        connection.rollback()
                        raise
            finally:
                if connection is not self._local.open:
                    connection.close()

    def keep(self) -> None:
        """Make the ledger this host's, whose machine-id was changed. Raises StoreDamaged, Busy."""
        of_any_host = copy(self)
        of_any_host._machine_id = str  # noqa: SLF001 - it is a Store
        with of_any_host.transaction() as db:
            db.execute("DELETE FROM host")
        with self.transaction():
            pass  # that stores the machine-id

    def _prepare(self, connection: sqlite3.Connection) -> None:
        _log_ahead(connection)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        if self._check_version(connection) < self.version:
            self._upgrade(connection)
        if not refuse_other_host(connection, self.file, machine_id := self._machine_id()) and machine_id:
            connection.execute("INSERT OR IGNORE INTO host VALUES (?)", (machine_id,))

    def _upgrade(self, connection: sqlite3.Connection) -> None:
        """Run all migrations in one transaction. Another process may have upgraded: read the version under the lock."""
        connection.execute("BEGIN IMMEDIATE")
        try:
            version = self._version_and_tables(connection)
            for migration in self._migrations:
                if migration.version > version:
                    for statement in filter(str.strip, migration.script.split(";")):
                        connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {self.version}")
            connection.execute("COMMIT")
        except BaseException:
            connection.rollback()
            raise

    def _check_version(self, connection: sqlite3.Connection) -> int:
        connection.execute("BEGIN")  # else another process may make the tables between two of these statements
        try:
            return self._version_and_tables(connection)
        finally:
            connection.rollback()

    def _version_and_tables(self, connection: sqlite3.Connection) -> int:
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        if version == 0 and connection.execute("SELECT 1 FROM sqlite_schema").fetchone():
            raise _OtherFile("it is another program's database")
        if version > self.version:
            raise StoreNewer(
                f"a newer vfioctl wrote the ledger {self.file}: version {version}, not {self.version}",
                hint="upgrade vfioctl; the ledger is sound, and has what devices were before",
            )
        if 0 < version < FIRST:
            raise StoreOlder(
                f"vfioctl 0.1 wrote the ledger {self.file}, and this release does not read it",
                hint=f"set it aside with {aside(self.file, 'old')}; {_UNKNOWN}",
            )
        scripts = tuple(migration.script for migration in self._migrations if migration.version <= version)
        refuse_unexpected(connection, tables_of(scripts))
        return version

    def _open_for_reading(self, place: Path) -> sqlite3.Connection:
        """Open read-only. Without write permission SQLite cannot create the WAL index; an empty WAL needs none."""
        try:
            return self._opened(place, "mode=ro")
        except sqlite3.OperationalError:
            wal = place.with_name(f"{place.name}-wal")
            if wal.exists() and wal.stat().st_size:
                raise  # without the WAL the newest entries would be silently missing
            return self._opened(place, "mode=ro&immutable=1")

    def _opened(self, place: Path, mode: str) -> sqlite3.Connection:
        connection = guarded(sqlite3.connect(f"{place.as_uri()}?{mode}", uri=True, timeout=10))
        try:
            with bounded(connection):
                if (version := self._check_version(connection)) == self.version:
                    refuse_other_host(connection, self.file, self._machine_id())
        except BaseException:
            connection.close()
            raise
        if version == self.version:
            return connection
        # A file of an older release is migrated in memory for reading; the file stays unchanged.
        newer = sqlite3.connect(":memory:", isolation_level=None)
        if version:
            connection.backup(newer)
        connection.close()
        self._prepare(newer)
        return newer


def _log_ahead(connection: sqlite3.Connection) -> None:
    """Write ahead to a log. SQLite does not wait for another process that turns this on for a new file."""
    until = time.monotonic() + SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(_PAUSE)
        else:
            return


def _begin(connection: sqlite3.Connection, file: Path) -> None:
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
            raise
        raise Busy(f"other processes write to the ledger {file} all the time", hint="try again later") from None


def _answer(ask: Callable[[sqlite3.Connection], T], connection: sqlite3.Connection) -> T:
    try:
        return ask(connection)
    except ValueError as error:
        raise sqlite3.DatabaseError(str(error)) from None


def _is_no_database(file: Path, error: Exception) -> bool:
    """Return whether the file does not even begin as SQLite files do. No connection can have it open, with locks."""
    if getattr(error, "sqlite_errorcode", 0) != sqlite3.SQLITE_NOTADB:
        return False
    with suppress(OSError), file.open("rb") as stream:
        return stream.read(len(_MAGIC)) != _MAGIC
    return False


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
        is_other = isinstance(error, _OtherFile) or _is_no_database(file, error)
        hint = f"set it aside with {aside(file, 'damaged')}; {_UNKNOWN}"
        if is_other:
            hint = "it is not a ledger of vfioctl: name another --ledger, or find out what wrote it"
        raise StoreDamaged(f"the ledger {file} is damaged: {error}", hint=hint) from None
    except Untrusted as error:
        raise StoreDamaged(f"the ledger {file} is refused: {error.strerror}", hint=KEEP_TO_ROOT) from None
    except OSError as error:
        raise StoreDamaged(f"the ledger {file} cannot be used: {error.strerror}", hint="run it as root") from None
