"""Marks of devices that are wedged or dead in this boot. No input or output, nor pydantic: listings show marks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING

from vfioctl.core.frozen import record_class

if TYPE_CHECKING:  # listings without a ledger start faster without SQLite
    from vfioctl.core.published import MarkRow


class MarkKind(StrEnum):
    WEDGED = "wedged"
    """A kernel write to the device never returned."""
    DEAD = "dead"
    """The device does not answer any more."""


@record_class
class Mark:
    """A record that a device is wedged or dead in this boot."""

    address: str
    """a PCI address, or the UUID of a mediated device"""
    kind: MarkKind
    since: str
    """ISO 8601, UTC"""
    why: str
    ticket: str = ""
    """the write that was given up, as the kernel side knows it"""


def marks_in(rows: Iterable[MarkRow]) -> Mapping[str, Mark]:
    """Return the marks by subject."""
    return {
        row.subject: Mark(address=row.subject, kind=MarkKind(row.kind), since=row.since, why=row.why, ticket=row.ticket)
        for row in rows
    }
