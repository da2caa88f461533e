"""What a listing reads from the ledger, and publishes for those who may not open it. May not import pydantic."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from sqlite3 import Connection
from stat import S_IMODE

from vfioctl.core.published import (
    MOST_BYTES,
    MOST_CHANGES,
    MOST_SUBJECTS,
    MarkRow,
    OpenChange,
    Published,
    PublishedChange,
)
from vfioctl.core.store import Store
from vfioctl.errors import VfioctlError
from vfioctl.kernel.files import write_into
from vfioctl.kernel.lock import held
from vfioctl.kernel.trusted import GROUP_FILE, PUBLIC_DIRECTORY, PUBLIC_FILE, opened_directory, read_published
from vfioctl.untrusted_text import parse_json

Record = Callable[[Connection, str], object]
"""Returns a subsystem's part of what is published, as JSON has it, from the ledger and the boot id."""
_LOCK_SECONDS = 2.0
_MARKS = "SELECT subject, kind, since, why, ticket FROM mark WHERE boot_id = ? ORDER BY subject"
_UNFINISHED = """
    SELECT journal, subject, began, CASE WHEN state = 'open' AND id = (SELECT max(id) FROM journal) THEN pid END
    FROM under_change JOIN journal ON id = journal ORDER BY journal DESC, under_change.rowid
"""
_HISTORY = """
    SELECT id, state, boot_id, began, ended, user, sudo_user, pid, made_for FROM journal
    WHERE id IN (SELECT id FROM journal ORDER BY id DESC LIMIT ?) OR id IN (SELECT journal FROM under_change)
    ORDER BY id DESC
"""
_PLAN = """
    SELECT json_extract(plan, '$.id'), json_extract(plan, '$.intent.verb'),
        (SELECT json_group_array(DISTINCT json_extract(value, '$.subject')) FROM json_each(plan, '$.changes'))
    FROM journal WHERE id = ? AND json_valid(plan)
"""
_plans: dict[tuple[Path, int, str], tuple[str, str, tuple[str, ...]]] = {}
"""Id, verb and subjects of the plans of changes, by ledger, number and time. Reading them from fifty plans takes longer
than all the rest of a publication, and they never change."""
_MOST_PLANS = 1000


def read_marks(store: Store, *, boot_id: str) -> tuple[MarkRow, ...]:
    """Return the marks of this boot, by subject. Raises StoreDamaged."""
    return store.read(lambda db: marks_in(db, boot_id), ())


def read_unfinished(store: Store) -> tuple[OpenChange, ...]:
    """Return the unfinished changes, the newest first, without parsing their plans. Raises StoreDamaged."""
    return store.read(lambda db: unfinished_in(db, lock_inode(store)), ())


def lock_inode(store: Store) -> int:
    """Return the inode of the host's lock; 0 if there is none."""
    try:
        return os.stat(store.lock_file).st_ino
    except OSError:
        return 0


def marks_in(db: Connection, boot_id: str) -> tuple[MarkRow, ...]:
    """Return the marks of this boot, by subject. Raises ValueError."""
    return tuple(map(MarkRow.checked, db.execute(_MARKS, (boot_id,))))


def unfinished_in(db: Connection, lock: int) -> tuple[OpenChange, ...]:
    """Return the unfinished changes, the newest first. `lock`: the inode of the host's lock."""
    changes = []
    for number, rows in groupby(db.execute(_UNFINISHED), key=lambda row: row[0]):
        (_, first, began, pid), *others = rows
        changes.append(OpenChange(number, (first, *(row[1] for row in others)), pid, began, lock))
    return tuple(changes)


def history_in(db: Connection, file: Path) -> tuple[PublishedChange, ...]:
    """Return the newest changes and the unfinished ones, the newest first. `file`: the ledger, for what is kept."""
    if len(_plans) > _MOST_PLANS:
        _plans.clear()
    changes = []
    for number, state, boot_id, began, *others in db.execute(_HISTORY, (MOST_CHANGES,)).fetchall():
        plan = _plans.get((file, number, began)) or _plan_of(db, number)
        _plans[file, number, began] = plan
        changes.append(PublishedChange(number, *plan, state, boot_id, began, *others))
    return tuple(changes)


def _plan_of(db: Connection, number: int) -> tuple[str, str, tuple[str, ...]]:
    """Return the id, the verb and the subjects of a change's plan; empty ones if it is damaged."""
    row = db.execute(_PLAN, (number,)).fetchone()
    if row is None:
        return "", "", ()
    identifier, verb, subjects = row
    return str(identifier), str(verb), tuple(map(str, parse_json(subjects)[:MOST_SUBJECTS]))


def publish(
    store: Store, file: Path, records: Mapping[str, Record], boot_id: Callable[[], str], *, group: int | None = None
) -> None:
    """Write the document if it is not what the ledger says. `records`: each subsystem's part, by the subsystem's name.
    `group`: the only one that may read it; None: all users may.

    If that fails, no document is left rather than an old one: the change that it is about goes on all the same."""
    try:
        with (
            opened_directory(str(file.parent), make=PUBLIC_DIRECTORY) as directory,
            # of two processes, the one that reads the ledger last writes last
            held(file.with_name(f".{file.name}.lock"), wait=_LOCK_SECONDS),
        ):
            text = _published(store, records, boot_id()).text().encode()
            if _is(file, text, group):
                os.utime(file.name, dir_fd=directory)
            elif group is None:
                write_into(directory, file.name, text, mode=PUBLIC_FILE)
            else:
                write_into(directory, file.name, text, mode=GROUP_FILE, owner=(os.geteuid(), group))
    except (VfioctlError, OSError):
        with suppress(OSError):
            file.unlink()


def _is(file: Path, text: bytes, group: int | None) -> bool:
    try:
        status = os.lstat(file)
        if group is not None and (status.st_gid, S_IMODE(status.st_mode)) != (group, GROUP_FILE):
            return False
        return read_published(str(file), MOST_BYTES) == text
    except OSError:
        return False


def _published(store: Store, records: Mapping[str, Record], boot_id: str) -> Published:
    def ask(db: Connection) -> Published:
        own = {name: record(db, boot_id) for name, record in records.items()}
        unfinished, history = unfinished_in(db, lock_inode(store)), history_in(db, store.file)
        return Published(boot_id, marks_in(db, boot_id), unfinished, own, history)

    return store.read(ask, Published(boot_id))
