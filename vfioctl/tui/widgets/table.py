"""A table of rows in a tree, with a cursor and a selection that stay with what the rows are about."""

from __future__ import annotations

from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from vfioctl.tui.model.marks import Marks
from vfioctl.tui.model.sheet import GAP, Row, Sheet, Tone, cut, indent

STYLES: dict[Tone, Style] = {
    Tone.PLAIN: Style(),
    Tone.GOOD: Style(color="green"),
    Tone.BAD: Style(color="red", bold=True),
    Tone.WARNING: Style(color="magenta"),
    Tone.DIM: Style(dim=True),
    Tone.HEADING: Style(color="blue", bold=True),
}
_TITLE, _CURSOR = Style(bold=True, underline=True), Style(reverse=True, bold=True)
_GUTTER = 2
"""The columns of the mark of the cursor and of the mark of a selected row."""


class Table(ScrollView, can_focus=True):
    """Shows a sheet. Only the lines on the screen are drawn."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", show=False),
        Binding("down", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home", "move(-1000000)", show=False),
        Binding("end", "move(1000000)", show=False),
        Binding("space", "select", show=False),
        Binding("left", "fold(False)", show=False),
        Binding("right", "fold(True)", show=False),
        Binding("enter", "open", show=False),
    ]

    class Moved(Message):
        """The cursor is on another row, or the row has changed."""

    class Opened(Message):
        """Enter, or a double click: the menu of the row is wanted."""

    class Folded(Message):
        """The rows below one are to be hidden, or shown."""

        def __init__(self, key: str) -> None:
            super().__init__()
            self.key = key

    class Titled(Message):
        """The title of a column was clicked."""

        def __init__(self, column: int) -> None:
            super().__init__()
            self.column = column

    def __init__(self, marks: Marks, *, id: str | None = None) -> None:  # noqa: A002 - textual's name
        super().__init__(id=id)
        self._marks = marks
        self.sheet = Sheet((), ())
        self.cursor = 0
        self.selected: dict[str, None] = {}
        """The keys of the selected rows, in the order in which they were selected."""
        self._at_key = ""

    @property
    def row(self) -> Row | None:
        """The row at the cursor."""
        return self.sheet.rows[self.cursor] if self.cursor < len(self.sheet.rows) else None

    def show(self, sheet: Sheet) -> None:
        """Show another sheet. The cursor stays on its row, at the same height; if that is gone, where it was."""
        before, self.sheet = self.sheet, sheet
        height = self.cursor - self.scroll_offset.y
        was = self.cursor
        self.cursor = sheet.index.get(self._at_key, min(self.cursor, max(0, len(sheet.rows) - 1)))
        if not self._at_key:
            self.cursor = next((n for n, row in enumerate(sheet.rows) if not row.is_heading), 0)
        size = Size(self.size.width, len(sheet.rows) + 1)
        if size != self.virtual_size:
            self.virtual_size = size
        if self.cursor != was:
            self.scroll_to(y=max(0, self.cursor - height), animate=False, immediate=True)
        self._moved()
        if (before.columns, before.natural, before.sort, before.rows) != (
            *(sheet.columns, sheet.natural, sheet.sort, sheet.rows),
        ):
            self.refresh()

    def _moved(self) -> None:
        row = self.row
        self._at_key = row.key if row else ""
        self.post_message(self.Moved())

    def keep(self, existing: set[str]) -> None:
        """Drop from the selection what does not exist any more."""
        self.selected = {key: None for key in self.selected if key in existing}

    def clear_selection(self) -> None:
        """Select nothing."""
        self.selected = {}
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Draw one line: the titles, or a row."""
        width = self.scrollable_content_region.width
        if y == 0:
            return self._titles(width)
        number = self.scroll_offset.y + y - 1
        if number >= len(self.sheet.rows):
            return Strip.blank(width)
        return self._line(number, width)

    def _titles(self, width: int) -> Strip:
        segments = [Segment(" " * _GUTTER)]
        for number, wide in self.sheet.fitted(width - _GUTTER) if self.sheet.columns else ():
            column = self.sheet.columns[number]
            title = column.title + (self._marks.sorted if number == self.sheet.sort else "")
            text = title.rjust(wide) if column.right else title
            segments.append(Segment(cut(text, wide, self._marks.ellipsis), _TITLE))
            segments.append(Segment(" " * GAP))
        return Strip(segments).adjust_cell_length(width)

    def _line(self, number: int, width: int) -> Strip:
        row, at_cursor = self.sheet.rows[number], number == self.cursor
        gutter = (">" if at_cursor else " ") + ("*" if row.key in self.selected else " ")
        segments = [Segment(gutter, Style(bold=True))]
        mark = "" if row.is_open is None else self._marks.opened if row.is_open else self._marks.closed
        before = f"{' ' * (indent(row) - 2)}{mark:2}" if indent(row) else ""
        if row.is_heading:
            first = row.cells[0]
            text = cut(before + first.text, width - _GUTTER, self._marks.ellipsis)
            segments.append(Segment(text, STYLES[first.tone]))
        else:
            for column, wide in self.sheet.fitted(width - _GUTTER):
                segments += self._cell(row, column, wide, before if column == 0 else "")
        strip = Strip(segments).adjust_cell_length(width)
        return Strip([Segment(strip.text, _CURSOR)]) if at_cursor and self.has_focus else strip

    def _cell(self, row: Row, column: int, wide: int, before: str) -> list[Segment]:
        text, tone = row.cells[column]
        text = before + text
        padded = text.rjust(wide) if self.sheet.columns[column].right else text
        return [Segment(cut(padded, wide, self._marks.ellipsis), STYLES[tone]), Segment(" " * GAP)]

    def on_focus(self) -> None:
        """Draw the cursor."""
        self.refresh()

    on_blur = on_focus

    def on_resize(self) -> None:
        """The columns fit the new width; the cursor stays in sight."""
        self.virtual_size = Size(self.size.width, len(self.sheet.rows) + 1)
        self._follow()

    def action_move(self, rows: int) -> None:
        """Move the cursor."""
        if not self.sheet.rows:
            return
        before = self.cursor
        self.cursor = min(max(0, self.cursor + rows), len(self.sheet.rows) - 1)
        self._redraw(before, self.cursor)
        self._follow()
        self._moved()

    def _follow(self) -> None:
        """Scroll so that the cursor is in sight; the titles stay."""
        top, height = self.scroll_offset.y, max(1, self.size.height - 1)
        if self.cursor < top or (self.cursor == 1 and top == 1):
            self.scroll_to(y=0 if self.cursor <= 1 else self.cursor, animate=False, immediate=True)
        elif self.cursor >= top + height:
            self.scroll_to(y=self.cursor - height + 1, animate=False, immediate=True)

    def _redraw(self, *rows: int) -> None:
        for row in rows:
            self.refresh(Region(0, row - self.scroll_offset.y + 1, self.size.width, 1))

    def action_page(self, pages: int) -> None:
        """Move the cursor by a screen."""
        self.action_move(pages * max(1, self.size.height - 2))

    def action_select(self) -> None:
        """Select the row at the cursor, or no longer; go on to the next."""
        row = self.row
        if row and not row.is_heading:
            if row.key in self.selected:
                del self.selected[row.key]
            else:
                self.selected[row.key] = None
        self.action_move(1)

    def action_fold(self, opens: bool) -> None:  # noqa: FBT001 - an action has positional parameters
        """Show, or hide, the rows below the one at the cursor; a row without any goes to what it is below."""
        row = self.row
        if row is None:
            return
        if row.is_open is not None and row.is_open != opens:
            self.post_message(self.Folded(row.key))
        elif not opens and row.parent in self.sheet.index:
            self.action_move(self.sheet.index[row.parent] - self.cursor)

    def action_open(self) -> None:
        """Ask for the menu; fold a heading."""
        row = self.row
        if row and row.is_heading and row.is_open is not None:
            self.post_message(self.Folded(row.key))
        elif row and not row.is_heading:
            self.post_message(self.Opened())

    def on_click(self, event: events.Click) -> None:
        """Move the cursor there; a second click asks for the menu, one on a mark folds, one on a title sorts."""
        if event.y == 0:
            self._click_title(event.x)
            return
        number = self.scroll_offset.y + event.y - 1
        if number >= len(self.sheet.rows):
            return
        self.action_move(number - self.cursor)
        row = self.sheet.rows[number]
        left = _GUTTER + indent(row) - 2
        if row.is_open is not None and left <= event.x < left + 2:
            self.post_message(self.Folded(row.key))
        elif event.chain > 1:
            self.action_open()

    def _click_title(self, x: int) -> None:
        left = _GUTTER
        for number, wide in self.sheet.fitted(self.scrollable_content_region.width - _GUTTER):
            if left <= x < left + wide + GAP:
                self.post_message(self.Titled(number))
            left += wide + GAP
