"""Short tables: the journal of changes, and the bundled hosts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from vfioctl.console import words
from vfioctl.console.columns import Column, table
from vfioctl.console.plan_page import intent_line
from vfioctl.core.change import JournalEntry

_HISTORY = (
    Column("ID", right=True),
    Column("BEGAN (UTC)"),
    Column("STATE"),
    Column("PLAN", optional=True),
    Column("ENDED (UTC)", optional=True),
    Column("WHAT"),
)


def history_table(entries: Sequence[JournalEntry], *, width: int) -> RenderableType:
    """The journal, in the order of `entries`."""
    if not entries:
        return Text("No changes yet.")
    header, *lines = table(_HISTORY, [_row(entry) for entry in entries], width)
    return Stack(header, *(part for entry, line in zip(entries, lines, strict=True) for part in (line, *_why(entry))))


def _why(entry: JournalEntry) -> Iterator[RenderableType]:
    """Below its line, whole: it is what a reader of a failure came for."""
    if entry.why:
        yield Padding(Text(words.plain(entry.why)), (0, 0, 0, 4))


def _row(entry: JournalEntry) -> tuple[str, ...]:
    began, ended = _time(entry.began), _time(entry.ended or "")
    return str(entry.id), began, entry.state, entry.plan.id, ended, intent_line(entry.plan)


def _time(text: str) -> str:
    """ISO 8601 to the second, as people write it."""
    return words.plain(text[:19].replace("T", " "))


def hosts_table(hosts: Mapping[str, str]) -> RenderableType:
    """Names and what they depict."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    for name, about in hosts.items():
        grid.add_row(Text(name, style="bold"), Text(words.plain(about)))
    return grid
