"""The menu of the actions of a row: those that are not possible here are grey, with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical

from vfioctl.tui.dialogs.dialog import Dialog, text_line, title_line
from vfioctl.tui.model.marks import Marks
from vfioctl.tui.model.sheet import Column, Row, Sheet, Tone, cell
from vfioctl.tui.widgets.table import Table

_COLUMNS = (Column("KEY"), Column("ACTION"), Column("WHY NOT"))


class Entry(tuple[str, str, str, str]):
    """Name, key, title, and why it is not possible; empty if it is."""

    __slots__ = ()


class Menu(Dialog[str]):
    """Results in the name of the action that was chosen."""

    BINDINGS: ClassVar[list[BindingType]] = []

    def __init__(self, title: str, entries: Sequence[Entry], marks: Marks) -> None:
        super().__init__()
        self._title, self._entries, self._marks = title, entries, marks

    def compose(self) -> ComposeResult:
        """Make the list."""
        with Vertical(classes="box"):
            yield title_line(self._title)
            yield Table(self._marks, id="menu")
            yield text_line("Enter or the key: choose   Esc: close", id="hint")

    def on_mount(self) -> None:
        """Fill the list; the cursor is on the first that is possible."""
        rows = [
            Row(name, (cell(key, tone), cell(words, tone), cell(why, Tone.DIM)))
            for name, key, words, why in self._entries
            for tone in [Tone.DIM if why else Tone.PLAIN]
        ]
        table = self.query_one(Table)
        table.styles.height = len(rows) + 1
        table.show(Sheet(_COLUMNS, rows))
        possible = next((number for number, entry in enumerate(self._entries) if not entry[3]), 0)
        table.action_move(possible)
        table.focus()

    def on_table_opened(self, event: Table.Opened) -> None:
        """Choose the action at the cursor."""
        event.stop()
        row = self.query_one(Table).row
        if row:
            self._choose(row.key)

    def on_key(self, event: events.Key) -> None:
        """Choose the action with this key."""
        for name, key, _, _ in self._entries:
            if event.character == key:
                event.stop()
                self._choose(name)

    def _choose(self, name: str) -> None:
        why = next(entry[3] for entry in self._entries if entry[0] == name)
        if why:
            self.query_one("#hint").update(cell(f"Not possible: {why}").text)  # type: ignore[attr-defined]
        else:
            self.finish(name)
