"""Renders the journal. May not know a kind of resource, action, check or fact."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from vfioctl.console.columns import Column, table
from vfioctl.console.plan_page import clock
from vfioctl.console.words import UNKNOWN, plain
from vfioctl.core.change import Caller, JournalEntry

_INDENT = 4
_COLUMNS = (
    Column("ID", right=True),
    Column("BEGAN (UTC)"),
    Column("STATE"),
    Column("BY", optional=True),
    Column("PLAN", optional=True),
    Column("ENDED (UTC)", optional=True),
    Column("WHAT"),
)


def history_table(entries: Sequence[JournalEntry], *, width: int) -> RenderableType:
    """Render journal entries in the order given, for `width` columns."""
    if not entries:
        return Text("No changes yet.")
    header, *lines = table(_COLUMNS, [_row(entry) for entry in entries], width)
    return Stack(header, *(part for entry, line in zip(entries, lines, strict=True) for part in (line, *_why(entry))))


def _row(entry: JournalEntry) -> tuple[str, ...]:
    began, ended, what = clock(entry.began), clock(entry.ended or ""), plain(entry.plan.intent.title())
    return str(entry.id), began, entry.state, _who(entry.caller), entry.plan.id, ended, what


def _who(caller: Caller) -> str:
    return plain(f"{caller.sudo_user} (sudo)" if caller.sudo_user else caller.user or UNKNOWN)


def _why(entry: JournalEntry) -> Iterator[RenderableType]:
    """Yield the reason of a failed change below its row, never truncated."""
    if entry.why:
        yield Padding(Text(plain(entry.why)), (0, 0, 0, _INDENT))
