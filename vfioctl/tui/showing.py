"""What the tables and the details show, and how rows are arranged: sorted, filtered, folded. Everything that takes
time is done in a thread."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from rich.text import Text
from textual import events
from textual.message import Message
from textual.widgets import Input

from vfioctl.errors import VfioctlError
from vfioctl.tui.data.change import failed
from vfioctl.tui.data.threads import Latest
from vfioctl.tui.model.sheet import Sheet, View
from vfioctl.tui.screens.sheets import column_title, details, sheet_of, sortable
from vfioctl.tui.shell import Shell
from vfioctl.tui.widgets.page import Lines, Page, drawn
from vfioctl.tui.widgets.table import Table

_WIDE = 120
"""Columns from which the details are beside the table."""


class SheetMade(Message):
    """A screen's sheet is made."""

    def __init__(self, view: View, sheet: Sheet) -> None:
        super().__init__()
        self.view, self.sheet = view, sheet


class DetailsMade(Message):
    """The details of a row are drawn."""

    def __init__(self, about: tuple[object, ...], lines: Lines) -> None:
        super().__init__()
        self.about, self.lines = about, lines


class Showing(Shell):
    """Draws the tables and the details."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.drawing, self.reading = Latest("drawing"), Latest("details")
        self._drawn: tuple[object, ...] = ()

    def draw_sheet(self) -> None:
        """Make the sheet of the screen that is shown, in a thread."""
        view, known, arrangement = self.view, self.known, self.arrangements[self.view]
        if known is None:
            return

        def make() -> None:
            known.names.learn(known.overview.inventory)
            self.post_message(SheetMade(view, sheet_of(view, known, arrangement)))

        self.drawing.submit("sheet", make)

    def on_sheet_made(self, event: SheetMade) -> None:
        """Show the sheet."""
        if event.view is self.view and not self.is_over:
            table = self.table_of(event.view)
            if not self.arrangements[event.view].words:
                table.keep(set(event.sheet.index) | self._hidden_keys(table))
            table.show(event.sheet)

    def _hidden_keys(self, table: Table) -> set[str]:
        """Return selected rows that are folded away, and still exist."""
        functions: Collection[str] = self.known.overview.inventory.by_address if self.known else ()
        return {key for key in table.selected if key in functions}

    def on_table_moved(self) -> None:
        """Draw the details of the row at the cursor."""
        if self.is_over:
            return
        self.draw_details()
        self.draw_bars()

    def draw_details(self) -> None:
        """Draw the details, in a thread, if they are shown."""
        page, row, known, view = self.main.query_one("#details", Page), self.table.row, self.known, self.view
        if not page.display or row is None or known is None:
            return
        width = max(20, page.scrollable_content_region.width or page.size.width)
        about = (view, row.key, width, known.overview, known.changes, known.kubelet)
        if about == self._drawn:
            return

        def draw() -> None:
            try:
                parts = details(self.host, view, row.key, known, width)
            except VfioctlError as error:
                parts = [Text(line) for line in failed(error)]
            self.post_message(DetailsMade(about, drawn(parts, width)))

        self.reading.submit("details", draw)

    def on_details_made(self, event: DetailsMade) -> None:
        """Show the details, from the top if they are about another row."""
        if self.is_over:
            return
        page = self.main.query_one("#details", Page)
        if event.about[:2] != self._drawn[:2]:
            page.scroll_home(animate=False, immediate=True)
        self._drawn = event.about
        page.show(event.lines)

    def on_resize(self, event: events.Resize) -> None:
        """The details are beside the table where there is room."""
        main = self.main
        main.set_class(event.size.width >= _WIDE, "wide")
        main.set_class(event.size.width < _WIDE, "narrow")
        self.call_after_refresh(self.draw_details)
        self.draw_bars()

    def action_details(self) -> None:
        """Show the details or hide them."""
        main = self.main
        main.toggle_class("folded" if main.has_class("wide") else "detailed")
        shown = main.has_class("narrow") and main.has_class("detailed")
        (main.query_one("#details", Page) if shown else self.table).focus()
        self.call_after_refresh(self.draw_details)

    def arrange(self, **changed: object) -> None:
        """Arrange the rows of the screen in another way."""
        self.arrangements[self.view] = replace(self.arrangements[self.view], **changed)  # type: ignore[arg-type]
        self.draw_sheet()
        self.draw_bars()

    def action_sort(self) -> None:
        """Sort by the next column; after the last one, the rows are a tree again."""
        sort = self.arrangements[self.view].sort
        after = 0 if sort is None else sort + 1
        sheet = self.table.sheet
        shown = [number for number, _ in sheet.fitted(self.table.size.width)] if sheet.columns else []
        column = next((number for number in shown if number >= after), None)
        self._sort(column)

    def _sort(self, column: int | None) -> None:
        self.arrange(sort=column)
        self.say("In the order of the host." if column is None else f"Sorted by {column_title(self.view, column)}.")

    def on_table_titled(self, event: Table.Titled) -> None:
        """Sort by the column whose title was clicked; a second click sorts no longer."""
        if event.column < sortable(self.view):
            self._sort(None if self.arrangements[self.view].sort == event.column else event.column)

    def on_table_folded(self, event: Table.Folded) -> None:
        """Hide or show the rows below one."""
        self.arrange(folded=self.arrangements[self.view].folded ^ {event.key})

    def action_everything(self) -> None:
        """Show all functions, or only GPUs and what travels with them."""
        shows = not self.arrangements[View.DEVICES].everything
        if self.view is View.DEVICES:
            self.arrange(everything=shows)
            self.say("All functions." if shows else "GPUs, and the functions that travel with them.")

    def show_filter(self) -> None:
        """Show the filter of the screen, if it has one."""
        line = self.main.query_one("#filter", Input)
        line.value = " ".join(self.arrangements[self.view].words)
        self._set_filter(shown=bool(line.value))

    def _set_filter(self, *, shown: bool) -> None:
        self.main.query_one("#filter-line").set_class(shown, "shown")

    def action_filter(self) -> None:
        """Ask for the words that rows must have."""
        line = self.main.query_one("#filter", Input)
        self._set_filter(shown=True)
        line.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while words are typed."""
        words = tuple(event.value.lower().split())
        if event.input.id == "filter" and words != self.arrangements[self.view].words:
            self.arrange(words=words)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Go back to the rows; the filter stays."""
        if event.input.id == "filter":
            self._set_filter(shown=bool(event.value))
            self.table.focus()

    def action_leave(self) -> None:
        """Leave the details, the filter or the selection, one after the other."""
        main = self.main
        if main.has_class("narrow") and main.has_class("detailed"):
            self.action_details()
        elif isinstance(self.focused, Page):
            self.table.focus()
        elif main.query_one("#filter-line").has_class("shown"):
            self.arrange(words=())
            self.show_filter()
            self.table.focus()
        else:
            self.table.clear_selection()
            self.draw_bars()
