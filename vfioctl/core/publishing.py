"""Publishes what ordinary users may know of root's ledger. Writes one file, and a lock beside it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from sqlite3 import Connection

from vfioctl.core.published import MOST_BYTES, Published
from vfioctl.core.snapshot import marks_in, unfinished_in
from vfioctl.core.store import Store
from vfioctl.errors import VfioctlError
from vfioctl.kernel.files import write_into
from vfioctl.kernel.lock import held
from vfioctl.kernel.trusted import PUBLIC_DIRECTORY, PUBLIC_FILE, opened_directory, read_published

Record = Callable[[Connection, str], object]
"""Returns a subsystem's part of the document, as JSON has it, from the ledger and the boot id."""
_LOCK_SECONDS = 2.0


def publish(store: Store, file: Path, records: Mapping[str, Record], boot_id: Callable[[], str]) -> None:
    """Write the document if it is not what the ledger says. `records`: each subsystem's part, by the subsystem's name.

    If that fails, no document is left rather than an old one: the change that it is about goes on all the same.
    """
    try:
        with (
            opened_directory(str(file.parent), make=PUBLIC_DIRECTORY) as directory,
            # of two processes, the one that reads the ledger last writes last
            held(file.with_name(f".{file.name}.lock"), wait=_LOCK_SECONDS),
        ):
            text = _published(store, records, boot_id()).text().encode()
            if _is(file, text):
                os.utime(file.name, dir_fd=directory)
            else:
                write_into(directory, file.name, text, mode=PUBLIC_FILE)
    except (VfioctlError, OSError):
        with suppress(OSError):
            file.unlink()


def _is(file: Path, text: bytes) -> bool:
    try:
        return read_published(str(file), MOST_BYTES) == text
    except OSError:
        return False


def _published(store: Store, records: Mapping[str, Record], boot_id: str) -> Published:
    def ask(db: Connection) -> Published:
        own = {name: record(db, boot_id) for name, record in records.items()}
        return Published(boot_id, marks_in(db, boot_id), unfinished_in(db), own)

    return store.read(ask, Published(boot_id))
