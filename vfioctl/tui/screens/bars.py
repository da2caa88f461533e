"""The lines above and below the table, and the help. Reads no clock."""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len
from rich.console import RenderableType
from rich.text import Text

from vfioctl.console.columns import fact_grid
from vfioctl.console.words import plain
from vfioctl.tui.model.actions import offered
from vfioctl.tui.model.sheet import View, cut
from vfioctl.tui.screens.sheets import Known

_SLOW = 5.0
"""Seconds after which a reading that has not ended is mentioned."""
_KEYS = (
    ("arrows, PgUp, PgDn, Home, End", "move; Left and Right hide and show what is below a row"),
    ("Space", "select a row, and several; actions are for all of them"),
    ("Esc", "leave details, filter or selection"),
    ("Enter", "the menu of actions, with the reason why one is not possible"),
    (f"1 to {len(View)}", "the screens"),
    ("/", "filter: show only the rows that have all the words typed"),
    ("s", "sort by the next column"),
    ("d", "details of the row: beside the table from 120 columns, else in its place"),
    ("a", "devices: all functions, not only GPUs and what travels with them"),
    ("r", "read the host again at once"),
    ("p", "the change that is under way, or the last one"),
    (":", "the command palette"),
    ("?", "this page"),
    ("q", "quit; asks while a change is under way"),
    ("mouse", "click a row, a title to sort, the bar; a second click opens the menu"),
)


def _places(width: int) -> Iterator[tuple[View, str, int]]:
    """Yield each screen, its label in the bar, and where that begins. Labels have a gap where there is room for all."""
    labels = [f" {number} {view} " for number, view in enumerate(View, 1)]
    gap, left = int(sum(map(len, labels)) + len(labels) <= width), 0
    for view, label in zip(View, labels, strict=True):
        yield view, label, left
        left += len(label) + gap


def bar(view: View, width: int) -> Text:
    """Return the bar of the screens."""
    text = Text(no_wrap=True, overflow="ellipsis")
    for other, label, left in _places(width):
        text.append(" " * (left - text.cell_len))
        text.append(f"[{label[1:-1]}]" if other is view else label, style="bold reverse" if other is view else "")
    name = " vfioctl "
    room = width - text.cell_len - len(name)
    if room >= 0:
        text.append(" " * room + name, style="dim")
    return text


def view_at(x: int, width: int) -> View | None:
    """Return the screen whose label is at a column of the bar."""
    return next((view for view, label, left in _places(width) if left <= x < left + len(label)), None)


def status(known: Known | None, host: str, problem: str, waits: float, width: int) -> Text:
    """Return the line about the host. `waits`: seconds since the reading that is under way began."""
    host = plain(host)
    if known is None:
        left = f"{host}: {plain(problem)}" if problem else f"{host}: reading, {waits:.0f} s"
        return Text(cut(left, width, "…"), style="bold" if problem else "", no_wrap=True)
    time = f"as of {known.overview.at[11:19]} UTC"
    left = known.summary
    if problem or waits > _SLOW:
        why = plain(problem) or f"no answer for {waits:.0f} s"
        return Text(cut(f"STALE, {time}: {why}", width, "…"), style="bold red", no_wrap=True)
    choices = (f"{host}  {time}", f"{host}  {time.removeprefix('as of ')}", time)
    right = next((text for text in choices if cell_len(left) + cell_len(text) + 2 <= width), time)
    room = width - cell_len(right)
    return Text.assemble((cut(left, room - 1, "…"), ""), " ", (right, "dim"), no_wrap=True)


def keys_line(selected: int, width: int) -> Text:
    """Return the line of keys."""
    text = Text(no_wrap=True, overflow="crop")
    if selected:
        text.append(f" {selected} selected, Esc: none ", style="reverse")
        text.append(" ")
    keys = (("Enter", "actions"), ("Space", "select"), ("?", "help"), ("q", "quit"))
    for key, what in (*keys, ("/", "filter"), ("d", "details"), ("s", "sort"), ("r", "refresh")):
        if text.cell_len + len(key) + len(what) + 3 > width:
            break
        text.append(key, style="bold").append(f" {what}  ")
    return text


def help_parts(view: View) -> list[RenderableType]:
    """Return the page of keys."""
    actions = [(action.key, action.title) for action in offered(view)]
    return [
        Text("Actions here", style="bold"),
        fact_grid(actions, style="bold", least=4),
        Text(),
        Text("Everywhere", style="bold"),
        fact_grid(_KEYS, style="bold"),
        Text(),
        Text(
            "An action shows its plan first, as --dry-run prints it. Only y applies it. A change can be left: it goes "
            "on, and p shows it again. If the terminal is in disorder after a kill -9, the command reset repairs it."
        ),
    ]
