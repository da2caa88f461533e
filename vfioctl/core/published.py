"""What ordinary users may know of root's ledger: one JSON document, replaced as a whole.

Users who could open the ledger could lock it. This module reads the document and forms it; it may not write, nor import
pydantic or sqlite3: listings read it before their scan."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from vfioctl.core.caller import is_making
from vfioctl.kernel.trusted import read_published
from vfioctl.untrusted_text import parse_json

VERSION = 2
_READABLE = (1, 2)
"""Version 1 has no claims and no history, and does not say which process makes a change."""
MOST_BYTES = 16 << 20
MOST_CHANGES = 50
"""So many of the newest changes are published, and all unfinished ones."""
MOST_SUBJECTS = 256
"""So many devices of each of these changes are published, so that the document stays far below `MOST_BYTES`."""


class MarkRow(NamedTuple):
    """A mark as the ledger holds it; see `Mark`."""

    subject: str
    kind: str
    since: str
    why: str
    ticket: str

    @classmethod
    def checked(cls, columns: Iterable[object]) -> Self:
        """Return the mark in these columns. Raises ValueError."""
        row = texts(columns, len(cls._fields))
        if row[1] not in ("wedged", "dead"):
            raise ValueError(f"{row[1][:40]!r} is no kind of mark")
        return cls(*row)


class OpenChange(NamedTuple):
    """An unfinished change, and what tells whether a process is still making it; see `is_making`."""

    journal: int
    """Its number in the journal."""
    subjects: tuple[str, ...]
    pid: int | None = None
    """The process that began it; None for a change that no process can be making: it is stuck, or not the newest."""
    began: str = ""
    lock: int = 0
    """The inode of the host's lock, which other users may not look at."""

    @classmethod
    def checked(cls, document: Mapping[str, Any]) -> Self:
        """Return the change in this document; version 1 has no process. Raises ValueError, TypeError, KeyError."""
        pid, (began,) = document.get("pid"), texts([document.get("began", "")], 1)
        return cls(
            int(document["journal"]),
            texts(document["subjects"]),
            None if pid is None else int(pid),
            began,
            int(document.get("lock", 0)),
        )


class BeingChanged(NamedTuple):
    """An unfinished change as a listing tells it."""

    number: int
    subjects: tuple[str, ...]
    process: int | None
    """The living process that is making it; None: it was interrupted."""

    @property
    def under_way(self) -> bool:
        return self.process is not None


def with_makers(changes: Iterable[OpenChange]) -> tuple[BeingChanged, ...]:
    """Return the changes, each with the process that is still making it, if one is."""
    return tuple(
        BeingChanged(c.journal, c.subjects, c.pid if is_making(c.pid, c.began, c.lock) else None) for c in changes
    )


class PublishedChange(NamedTuple):
    """A change of the journal, without what only root may know: its plan, its command line and what went wrong."""

    id: int
    plan: str
    """The plan's id."""
    verb: str
    subjects: tuple[str, ...]
    state: str
    boot_id: str
    began: str
    ended: str | None
    user: str
    sudo_user: str
    pid: int | None
    made_for: str

    @classmethod
    def checked(cls, columns: Iterable[Any]) -> Self:
        """Return the change in these columns. Raises ValueError, TypeError."""
        row = cls(*columns)
        texts((row.plan, row.verb, row.state, row.boot_id, row.began, row.ended or ""), 6)
        texts((row.user, row.sudo_user, row.made_for), 3)
        return row._replace(id=int(row.id), subjects=texts(row.subjects), pid=None if row.pid is None else int(row.pid))


class Published(NamedTuple):
    """What root has published of its ledger."""

    boot_id: str
    """The boot that the marks and records are of."""
    marks: tuple[MarkRow, ...] = ()
    unfinished: tuple[OpenChange, ...] = ()
    records: Mapping[str, Any] = {}
    """What each subsystem publishes, by the subsystem's name."""
    history: tuple[PublishedChange, ...] | None = None
    """The newest `MOST_CHANGES` changes and the unfinished ones, the newest first; None in version 1."""

    def text(self) -> str:
        """Return the document."""
        return json.dumps(
            {
                "version": VERSION,
                "boot_id": self.boot_id,
                "marks": [mark._asdict() for mark in self.marks],
                "unfinished": [change._asdict() for change in self.unfinished],
                "records": self.records,
                "history": self.history,
            }
        )  # without `indent`, which takes five times as long


def is_newer(file: Path, ledger: Path) -> bool:
    """Return whether what is published in `file` is newer than the ledger. False if in doubt."""
    try:
        published = os.lstat(file).st_mtime_ns
        return os.stat(ledger).st_mtime_ns < published and os.stat(f"{ledger}-wal").st_mtime_ns < published
    except FileNotFoundError as error:
        return bool(error.filename == f"{ledger}-wal")
    except OSError:
        return False


def read(path: str, boot_id: str | None = None) -> Published:
    """Read the document, which must be of this boot if one is given. Raises OSError, ValueError."""
    try:
        document = parse_json(read_published(path, MOST_BYTES), most=MOST_BYTES)
        if document["version"] not in _READABLE:
            raise ValueError("another version of vfioctl wrote it")
        (strings,) = texts([document["boot_id"]], 1)
        if boot_id not in (None, strings):
            raise ValueError("it is of an earlier boot")
        return Published(
            strings,
            tuple(MarkRow.checked(mark[name] for name in MarkRow._fields) for mark in document["marks"]),
            tuple(OpenChange.checked(change) for change in document["unfinished"]),
            dict(document["records"]),
            _history_in(document),
        )
    except (TypeError, LookupError, AttributeError):
        raise ValueError("it is no such document") from None


def _history_in(document: Mapping[str, Any]) -> tuple[PublishedChange, ...] | None:
    rows = document.get("history")
    return None if rows is None else tuple(map(PublishedChange.checked, rows))


def texts(values: Iterable[object], count: int | None = None) -> tuple[str, ...]:
    """Return the values, which must be texts, and `count` of them. Raises ValueError."""
    row = tuple(values)
    strings = tuple(value for value in row if isinstance(value, str))
    if len(strings) != (len(row) if count is None else count):
        raise ValueError("a text is missing")
    return strings
