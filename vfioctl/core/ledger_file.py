"""Where the ledger is: finds or creates its file, which no other user may open, in a directory that root can rely on.

May not open the file: closing it would release SQLite's locks."""

from __future__ import annotations

import errno as errnos
import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from vfioctl.errors import StoreForeign
from vfioctl.kernel.trusted import (
    PRIVATE_DIRECTORY,
    Untrusted,
    keep_private,
    make_private,
    opened_directory,
    place_of,
    set_mode,
    status_of,
)

_ENDINGS = ("", "-wal", "-shm")
"""The database, its write-ahead log, and the log's index."""
_LEAST_BYTES = 512
"""The smallest page. There is a log only once the first page is written."""
_MOST_BYTES = 256 << 20
"""Of a ledger that is not root's."""


class LedgerFile:
    """The file of one ledger. `own_directory`: no other user may enter its directory.

    `published`: what root publishes of it. An empty ledger is a new one only without that."""

    def __init__(self, file: Path, *, own_directory: bool, published: Path | None = None) -> None:
        self._file, self._own_directory, self._published = file, own_directory, published

    def found(self) -> Path | None:
        """Return the ledger's path without symbolic links; None if there is none. Raises Untrusted, OSError."""
        try:
            with opened_directory(str(self._file.parent)) as directory:
                existing = self._refuse_odd(directory)
                return Path(place_of(directory), self._file.name) if existing else None
        except (FileNotFoundError, NotADirectoryError):
            return None

    def made(self) -> Path:
        """The same for writing: create the file if it is missing, and close it to all other users."""
        with opened_directory(str(self._file.parent), make=PRIVATE_DIRECTORY) as directory:
            if not self._refuse_odd(directory) and self._published:
                with suppress(OSError):
                    self._published.unlink()  # it is of a ledger that was set aside
            if self._own_directory:
                set_mode(directory, PRIVATE_DIRECTORY)
            make_private(directory, self._file.name)
            for ending in _ENDINGS[1:]:  # SQLite gives new ones the mode of the database
                keep_private(directory, f"{self._file.name}{ending}")
            return Path(place_of(directory), self._file.name)

    def refuse_unwritable(self) -> None:
        """Raise OSError if this process cannot write the ledger, or could not create it. Writes nothing."""
        places = [place for place in (self._file, *self._file.parents) if place.exists()]
        for place in places[: 2 if self._file.exists() else 1]:  # the log is created beside it
            if not os.access(place, os.W_OK, effective_ids=True):
                is_read_only = os.statvfs(place).f_flag & os.ST_RDONLY
                number = errnos.EROFS if is_read_only else errnos.EACCES
                raise OSError(number, os.strerror(number), str(place))

    def _refuse_odd(self, directory: int) -> bool:
        """Return whether there is a ledger. Raises Untrusted or DatabaseError if a file is not what it should be."""
        # the database last: another process may be making them, in the other order
        _, log, database = [status_of(directory, f"{self._file.name}{ending}") for ending in reversed(_ENDINGS)]
        size, logged = (status.st_size if status else 0 for status in (database, log))
        if database and database.st_uid != 0 and size > _MOST_BYTES:
            raise Untrusted(f"it is larger than {_MOST_BYTES >> 20} MiB")
        if size < _LEAST_BYTES and (size or logged):  # SQLite would take it for a new one, and delete the log
            raise sqlite3.DatabaseError("it was cut off after its first bytes")
        if database and not size and self._published and os.path.exists(self._published):
            raise sqlite3.DatabaseError(f"it is empty, and was not when {self._published} was written")
        return database is not None


def aside(file: Path, suffix: str) -> str:
    """Return the command that sets a ledger aside."""
    from shlex import join

    return join(["mv", str(file), f"{file}.{suffix}"])


_SHOWN = 8
"""Digits of a machine-id in a message. All of them are confidential (machine-id(5))."""


def refuse_other_host(db: sqlite3.Connection, file: Path, machine_id: str) -> bool:
    """Return whether the ledger names its host. Raises StoreForeign if that is another one than `machine_id`.

    Nothing is refused if either is not known: an older ledger names none, and a container may have no machine-id."""
    row = db.execute("SELECT machine_id FROM host").fetchone()
    if row and machine_id and row[0] != machine_id:
        raise StoreForeign(
            f"the ledger {file} is another host's: its machine-id begins with {row[0][:_SHOWN]}, and this host's with "
            f"{machine_id[:_SHOWN]}",
            hint=f"if the disk was copied, set the ledger aside with {aside(file, 'other-host')}; if the machine-id of "
            "this host was changed, keep the ledger with vfioctl recover --this-host",
        )
    return row is not None
