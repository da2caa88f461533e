"""The screens: the bar, the tables, the details, the keys. Waits neither for data nor for a lock."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.filter import LineFilter
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Input, Static

from vfioctl.console.words import plain
from vfioctl.errors import VfioctlError
from vfioctl.host import Host
from vfioctl.tui.changing import Changing
from vfioctl.tui.data.change import failed
from vfioctl.tui.data.feed import PAUSE, Feed
from vfioctl.tui.data.threads import Latest
from vfioctl.tui.dialogs.question import Help
from vfioctl.tui.model.actions import offered
from vfioctl.tui.model.marks import ASCII, marks_for
from vfioctl.tui.model.names import Names
from vfioctl.tui.model.sheet import Sheet, View
from vfioctl.tui.screens.bars import bar, help_parts, keys_line, status, view_at
from vfioctl.tui.screens.sheets import Arrangement, Known, column_title, details, sheet_of, sortable
from vfioctl.tui.terminal import AsciiOnly, Terminal, WithoutColours
from vfioctl.tui.theme import CSS, TERMINAL
from vfioctl.tui.widgets.page import Lines, Page, drawn
from vfioctl.tui.widgets.table import Table

_WIDE = 120
"""Columns from which the details are beside the table."""
_EVENTS = 1000


class Announced(Message):
    """The feed has news."""


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


class Tui(Changing, App[int]):
    """Results in the signal that ended it; 0 if the user did."""

    CSS = CSS
    TITLE = "vfioctl"
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(n), f"show('{view.name}')", show=False) for n, view in enumerate(View, 1)),
        Binding("slash", "filter", show=False),
        Binding("s", "sort", show=False),
        Binding("a", "everything", show=False),
        Binding("d", "details", show=False),
        Binding("r", "read", show=False),
        Binding("p", "progress", show=False),
        Binding("question_mark", "help", show=False),
        Binding("colon", "command_palette", show=False),
        Binding("escape", "leave", show=False),
        Binding("q", "quit", show=False),
    ]

    def __init__(self, host: Host, feed: Feed, *, environment: Mapping[str, str] = os.environ) -> None:
        plain_colours = bool(environment.get("NO_COLOR"))
        kept = os.environ.pop("NO_COLOR", None)  # textual would make it grey, and take it from the environment
        super().__init__(driver_class=Terminal)
        if kept is not None:
            os.environ["NO_COLOR"] = kept
        self.register_theme(TERMINAL)
        self.theme = "terminal"
        self.host, self.feed, self.marks = host, feed, marks_for(environment)
        self._extra: list[LineFilter] = [WithoutColours()] if plain_colours else []
        self._extra += [AsciiOnly()] if self.marks is ASCII else []
        self.view = View.DEVICES
        self.known: Known | None = None
        self._arrangements = dict.fromkeys(View, Arrangement())
        self._drawing, self._reading = Latest("drawing"), Latest("details")
        self._problem, self._taken, self._heard = "", 0.0, 0
        self._drawn: tuple[object, ...] = ()
        self._said = ""

    def get_line_filters(self) -> list[LineFilter]:
        """Return the filters of all that is drawn."""
        return [*super().get_line_filters(), *self._extra]

    def compose(self) -> ComposeResult:
        """Make the shell."""
        yield Static(id="bar", markup=False)
        yield Static(id="status", markup=False)
        with Horizontal(id="body"):
            for view in View:
                yield Table(self.marks, id=view.name.lower())
            yield Page(id="details")
        yield Input(placeholder="filter: words that a row must have", id="filter", compact=True, select_on_focus=False)
        yield Static(id="message", markup=False)
        yield Static(id="keys", markup=False)

    def on_mount(self) -> None:
        """Paint at once; the data come when they come."""
        self.action_show("DEVICES")
        self.set_interval(1.0, self._look_at_age)
        self.feed.announce(self._announce)
        self.follow_signals()

    def _announce(self) -> None:
        self.post_message(Announced())

    def on_unmount(self) -> None:
        """Let the threads end."""
        for part in (self.feed, self._drawing, self._reading):
            part.stop()

    @property
    def table(self) -> Table:
        """The table of the screen that is shown."""
        return self._table(self.view)

    def _table(self, view: View) -> Table:
        return self.screen_stack[0].query_one(f"#{view.name.lower()}", Table)

    # what is read

    def on_announced(self) -> None:
        """Take the news, at most four times a second."""
        wait = self._taken + PAUSE - time.monotonic()
        if wait > 0:
            self.set_timer(wait, self._take)
        else:
            self._take()

    def _take(self) -> None:
        self._taken = time.monotonic()
        news = self.feed.take()
        known = self.known
        self._problem = self._problem if news.problem is None else news.problem
        overview = news.overview or (known.overview if known else None)
        if overview is None:
            self.draw_bars()
            return
        known = known or Known(overview, Names())
        numbered = tuple((self._heard + n, event) for n, event in enumerate(news.events, 1))
        self._heard += len(numbered)
        events_ = (*reversed(numbered), *known.events)[:_EVENTS]
        known = replace(known, overview=overview, events=events_)
        if news.changes is not None:
            known = replace(known, changes=news.changes, changes_problem=news.changes_problem)
        self.known = known
        self.draw_sheet()
        self.draw_bars()

    def _look_at_age(self) -> None:
        since = self.feed.reading_since
        if self.known is None or (since and time.monotonic() - since > 5) or self.change:
            self.draw_bars()

    def action_read(self) -> None:
        """Read everything again."""
        self.feed.ask(history=self.view is View.HISTORY)
        self.say("Reading the host again.")

    # what is drawn

    def draw_sheet(self) -> None:
        """Make the sheet of the screen that is shown, in a thread."""
        view, known, arrangement = self.view, self.known, self._arrangements[self.view]
        if known is None:
            return

        def make() -> None:
            known.names.learn(known.overview.inventory)
            self.post_message(SheetMade(view, sheet_of(view, known, arrangement)))

        self._drawing.submit("sheet", make)

    def on_sheet_made(self, event: SheetMade) -> None:
        """Show the sheet."""
        if event.view is self.view:
            table = self._table(event.view)
            if not self._arrangements[event.view].words:
                table.keep(set(event.sheet.index) | self._hidden_keys(table))
            table.show(event.sheet)

    def _hidden_keys(self, table: Table) -> set[str]:
        """Return selected rows that are folded away, and still exist."""
        inventory = self.known.overview.inventory if self.known else None
        return {key for key in table.selected if inventory and any(key == f.address for f in inventory.functions)}

    def on_table_moved(self) -> None:
        """Draw the details of the row at the cursor."""
        self.draw_details()
        self.draw_bars()

    def draw_details(self) -> None:
        """Draw the details, in a thread, if they are shown."""
        page, row, known, view = self.screen_stack[0].query_one("#details", Page), self.table.row, self.known, self.view
        if not page.display or row is None or known is None:
            return
        width = max(20, page.scrollable_content_region.width or page.size.width)
        about = (view, row.key, width, known.overview, known.changes)
        if about == self._drawn:
            return

        def draw() -> None:
            try:
                parts = details(self.host, view, row.key, known, width)
            except VfioctlError as error:
                parts = [Text(line) for line in failed(error)]
            self.post_message(DetailsMade(about, drawn(parts, width)))

        self._reading.submit("details", draw)

    def on_details_made(self, event: DetailsMade) -> None:
        """Show the details, from the top if they are about another row."""
        page = self.screen_stack[0].query_one("#details", Page)
        if event.about[:2] != self._drawn[:2]:
            page.scroll_home(animate=False, immediate=True)
        self._drawn = event.about
        page.show(event.lines)

    def draw_bars(self) -> None:
        """Draw the lines around the table."""
        main, width = self.screen_stack[0], self.size.width
        since = self.feed.reading_since
        waits = time.monotonic() - since if since else 0.0
        description = self.host.session.kernel.description
        overview = self.known.overview if self.known else None
        self._line("bar", bar(self.view, width))
        self._line("status", status(overview, description, self._problem, waits, width))
        self._line("keys", keys_line(len(self.table.selected), width))
        message = self.message or self._said
        self._line("message", Text(plain(message), style="bold", no_wrap=True, overflow="ellipsis"))
        main.query_one("#message").set_class(bool(message), "shown")

    def _line(self, name: str, text: Text) -> None:
        line = self.screen_stack[0].query_one(f"#{name}", Static)
        if getattr(line, "shown", None) != text:
            line.shown = text  # type: ignore[attr-defined] # what it shows, so that equal text is not drawn again
            line.update(text)

    def say(self, text: str) -> None:
        """Show a sentence until the next key."""
        self._said = text
        self.draw_bars()

    # keys

    def on_key(self, event: events.Key) -> None:
        """Do the action of the screen that has this key."""
        if len(self.screen_stack) > 1 or isinstance(self.focused, Input):
            return
        if self._said:
            self.say("")
        for action in offered(self.view):
            if event.character == action.key:
                event.stop()
                self.do(action)

    def action_show(self, name: str) -> None:
        """Show another screen."""
        if len(self.screen_stack) > 1:
            return
        self.view = View[name]
        for view in View:
            self._table(view).set_class(view is self.view, "shown")
        self.screen_stack[0].remove_class("detailed")
        self._show_filter()
        self.table.focus()
        if self.view is View.HISTORY:
            self.feed.ask_history()
        self.draw_sheet()
        self.draw_bars()

    def on_click(self, event: events.Click) -> None:
        """A click in the bar shows a screen."""
        if event.screen_y == 0 and (view := view_at(event.screen_x)) and len(self.screen_stack) == 1:
            self.action_show(view.name)

    def on_resize(self, event: events.Resize) -> None:
        """The details are beside the table where there is room."""
        main = self.screen_stack[0]
        main.set_class(event.size.width >= _WIDE, "wide")
        main.set_class(event.size.width < _WIDE, "narrow")
        self.call_after_refresh(self.draw_details)
        self.draw_bars()

    def action_details(self) -> None:
        """Show the details or hide them."""
        main = self.screen_stack[0]
        main.toggle_class("folded" if main.has_class("wide") else "detailed")
        shown = main.has_class("narrow") and main.has_class("detailed")
        (main.query_one("#details", Page) if shown else self.table).focus()
        self.call_after_refresh(self.draw_details)

    def arrange(self, **changed: object) -> None:
        """Arrange the rows of the screen in another way."""
        self._arrangements[self.view] = replace(self._arrangements[self.view], **changed)  # type: ignore[arg-type]
        self.draw_sheet()
        self.draw_bars()

    def action_sort(self) -> None:
        """Sort by the next column; after the last one, the rows are a tree again."""
        sort = self._arrangements[self.view].sort
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
            self._sort(None if self._arrangements[self.view].sort == event.column else event.column)

    def on_table_folded(self, event: Table.Folded) -> None:
        """Hide or show the rows below one."""
        self.arrange(folded=self._arrangements[self.view].folded ^ {event.key})

    def action_everything(self) -> None:
        """Show all functions, or only GPUs and what travels with them."""
        shows = not self._arrangements[View.DEVICES].everything
        if self.view is View.DEVICES:
            self.arrange(everything=shows)
            self.say("All functions." if shows else "GPUs, and the functions that travel with them.")

    def _show_filter(self) -> None:
        line = self.screen_stack[0].query_one("#filter", Input)
        line.value = " ".join(self._arrangements[self.view].words)
        line.set_class(bool(line.value), "shown")

    def action_filter(self) -> None:
        """Ask for the words that rows must have."""
        line = self.screen_stack[0].query_one("#filter", Input)
        line.add_class("shown")
        line.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while words are typed."""
        words = tuple(event.value.lower().split())
        if event.input.id == "filter" and words != self._arrangements[self.view].words:
            self.arrange(words=words)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Go back to the rows; the filter stays."""
        if event.input.id == "filter":
            event.input.set_class(bool(event.value), "shown")
            self.table.focus()

    def action_leave(self) -> None:
        """Leave the details, the filter or the selection, one after the other."""
        main = self.screen_stack[0]
        if main.has_class("narrow") and main.has_class("detailed"):
            self.action_details()
        elif main.query_one("#filter", Input).has_class("shown"):
            self.arrange(words=())
            self._show_filter()
            self.table.focus()
        else:
            self.table.clear_selection()
            self.draw_bars()

    def action_help(self) -> None:
        """Show the keys."""
        if len(self.screen_stack) == 1:
            self.push_screen(Help(f"Keys of the screen {self.view}", help_parts(self.view)))

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Yield what the command palette offers: the screens and the actions of this one."""
        for view in View:
            yield SystemCommand(f"Show {view}", "", lambda view=view: self.action_show(view.name))
        for action in offered(self.view):
            yield SystemCommand(action.title, "", lambda action=action: self.do(action))
        yield SystemCommand("Read the host again", "", self.action_read)
        yield SystemCommand("Keys", "", self.action_help)
        yield SystemCommand("Quit", "", self.ask_to_quit)
