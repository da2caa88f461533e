"""What ordinary users may know of root's ledger: one JSON document, replaced as a whole.

Users who could open the ledger could lock it. This module reads the document and forms it; it may not write, nor import
pydantic or sqlite3: listings read it before their scan."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from vfioctl.kernel.trusted import read_published
from vfioctl.untrusted_text import parse_json

VERSION = 2
_READABLE = (1, 2)
"""Version 1 does not say which process makes a change."""
MOST_BYTES = 16 << 20


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


class Published(NamedTuple):
    """What root has published of its ledger."""

    boot_id: str
    """The boot that the marks and records are of."""
    marks: tuple[MarkRow, ...] = ()
    unfinished: tuple[OpenChange, ...] = ()
    records: Mapping[str, Any] = {}
    """What each subsystem publishes, by the subsystem's name."""

    def text(self) -> str:
        """Return the document."""
        return json.dumps(
            {
                "version": VERSION,
                "boot_id": self.boot_id,
                "marks": [mark._asdict() for mark in self.marks],
                "unfinished": [change._asdict() for change in self.unfinished],
                "records": self.records,
            },
            indent=1,
        )


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
        )
    except (TypeError, LookupError, AttributeError):
        raise ValueError("it is no such document") from None


def texts(values: Iterable[object], count: int | None = None) -> tuple[str, ...]:
    """Return the values, which must be texts, and `count` of them. Raises ValueError."""
    row = tuple(values)
    strings = tuple(value for value in row if isinstance(value, str))
    if len(strings) != (len(row) if count is None else count):
        raise ValueError("a text is missing")
    return strings
