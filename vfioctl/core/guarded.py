"""Guards an SQLite connection against a crafted database, and long statements. May not know what tables hold."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import lru_cache

from vfioctl.signals import are_deferred, check_interrupt, deferred, is_pending

SECONDS = 30.0
"""The longest that reading, or one transaction, may compute. Reading a thousand changes takes milliseconds."""
_LONGEST_VALUE = 64 << 20
_INSTRUCTIONS = 20_000
"""Of SQLite's virtual machine between two looks at the clock: less than a millisecond."""
_SCHEMA = "SELECT type, name, sql FROM sqlite_schema"
_TABLE = re.compile(r"CREATE TABLE (\w+)|ALTER TABLE (\w+) RENAME TO (\w+)")
_OF_SQLITE = frozenset({"sqlite_stat1", "sqlite_stat4"})
"""What ANALYZE makes."""
_COMPUTED = re.compile(r"\bAS\s*\(|\bGENERATED\b", re.IGNORECASE)


def guarded(connection: sqlite3.Connection) -> sqlite3.Connection:
    """Return the connection, with what its schema may do limited."""
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE)
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection


@contextmanager
def bounded(connection: sqlite3.Connection, *, interruptible: bool = True) -> Iterator[None]:
    """End statements when the time is up (OperationalError), or a signal asks to end if not deferred (Interrupt)."""
    hear = interruptible and not are_deferred()
    until = time.monotonic() + SECONDS
    connection.set_progress_handler(lambda: time.monotonic() > until or (hear and is_pending()), _INSTRUCTIONS)
    try:
        # which signal it was would be lost if its handler ran during a statement: SQLite discards exceptions
        with deferred() if hear else nullcontext():
            try:
                yield
            except sqlite3.OperationalError as error:
                if getattr(error, "sqlite_errorcode", 0) != sqlite3.SQLITE_INTERRUPT:
                    raise
                if hear:
                    check_interrupt()
                if time.monotonic() <= until:  # SQLite has discarded what a signal's handler raised
                    raise KeyboardInterrupt from None
                raise sqlite3.OperationalError(f"it took more than {SECONDS:g} s; try again") from None
    finally:
        connection.set_progress_handler(None, 0)


@lru_cache(maxsize=8)  # a process opens the ledger several times
def tables_of(scripts: tuple[str, ...]) -> frozenset[str]:
    """Return the names of the tables that exist after these migrations."""
    names: set[str] = set()
    for script in scripts:
        for made, renamed, name in _TABLE.findall(script):
            names.discard(renamed)
            names.add(made or name)
    return frozenset(names)


def refuse_unexpected(connection: sqlite3.Connection, tables: frozenset[str]) -> None:
    """Raise sqlite3.DatabaseError for views, triggers and all tables but these: they may run any SQL."""
    for kind, name, text in connection.execute(_SCHEMA):
        automatic = kind == "index" and text is None
        plain = kind == "table" and (name in tables or name in _OF_SQLITE) and _is_plain(str(text))
        if not (automatic or plain):
            raise sqlite3.DatabaseError(f"it holds {ascii(name)[:80]}, which vfioctl did not make")


@lru_cache(maxsize=64)
def _is_plain(text: str) -> bool:
    return text.startswith("CREATE TABLE ") and not _COMPUTED.search(text)
