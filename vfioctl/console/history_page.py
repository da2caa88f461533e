"""Renders the journal: its changes as a table, and one change whole. May not know a kind of resource or action."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from vfioctl.console.choice import on_this_host
from vfioctl.console.columns import Column, Layout, Whole, fact_grid, note_lines
from vfioctl.console.plan_page import change_rows, clock, part, step_lines
from vfioctl.console.words import UNKNOWN, plain
from vfioctl.core.change import Caller, JournalEntry, JournalState
from vfioctl.core.registry import Registry

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
_STATES = {
    JournalState.OPEN: "open: interrupted, or made by a process that is not seen here; vfioctl recover finishes it",
    JournalState.DONE: "done",
    JournalState.BACK: "back: the host was put back as before",
    JournalState.STUCK: "stuck: it could not be put back; vfioctl recover tries again",
    JournalState.REBOOTED: "rebooted: a reboot has undone it",
}


def history_table(entries: Sequence[JournalEntry], *, width: int) -> RenderableType:
    """Render journal entries in the order given, for `width` columns."""
    rows = [_row(entry) for entry in entries]
    layout = Layout(_COLUMNS, rows, width)
    lines = zip(entries, layout.lines(rows), strict=True)
    return Stack(*layout.header(), *(part for entry, line in lines for part in (line, *_why(entry))))


def change_page(entry: JournalEntry, registry: Registry) -> RenderableType:
    """Render one journal entry: how it ended, who made it, what it changed and by which steps."""
    plan = entry.plan
    undone = plan.intent.undone_by(plan) if entry.state == JournalState.DONE else ()
    return Stack(
        Text(f"Change {entry.id}: {plain(plan.intent.title())}", style="bold"),
        fact_grid(_about(entry), style="bold"),
        *part("What changes", change_rows(plan.changes, registry)),
        *part("Steps", step_lines(plan.steps, registry)),
        *part("Undone by", (Whole(plain(on_this_host(line))) for line in undone)),
        *note_lines(plan.notes),
    )


def _about(entry: JournalEntry) -> Iterator[tuple[str, str]]:
    yield "state", "under way: a process is making it" if entry.under_way else _STATES[entry.state]
    if entry.why:
        yield "reason", entry.why
    if entry.reached is not None:
        yield "step reached", f"{entry.reached} of {len(entry.plan.steps)}"
    yield "began", f"{clock(entry.began)} UTC"
    yield "ended", f"{clock(entry.ended)} UTC" if entry.ended else "not yet"
    yield "by", _caller(entry.caller)
    if entry.made_for:
        yield "made for", entry.made_for
    yield "command", entry.caller.command or UNKNOWN
    yield "plan", entry.plan.id
    yield "boot", entry.boot_id


def _caller(caller: Caller) -> str:
    user = f"{caller.sudo_user}, with sudo as {caller.user}" if caller.sudo_user else caller.user or UNKNOWN
    return user if caller.pid is None else f"{user}, process {caller.pid}"


def _row(entry: JournalEntry) -> tuple[str, ...]:
    began, ended, what = clock(entry.began), clock(entry.ended or ""), plain(entry.plan.intent.title())
    state = "under way" if entry.under_way else entry.state
    return str(entry.id), began, state, _who(entry.caller), entry.plan.id, ended, what


def _who(caller: Caller) -> str:
    return plain(f"{caller.sudo_user} (sudo)" if caller.sudo_user else caller.user or UNKNOWN)


def _why(entry: JournalEntry) -> Iterator[RenderableType]:
    if entry.why:
        yield Padding.indent(Text(plain(entry.why)), _INDENT)
