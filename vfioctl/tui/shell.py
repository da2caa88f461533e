"""What all parts of the application share: its state, its lines, and the table that is shown."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from rich.text import Text
from textual.app import App, ComposeResult
from textual.containers import Horizontal
from textual.filter import LineFilter
from textual.screen import Screen
from textual.widgets import Input, Static

from vfioctl.console.words import plain
from vfioctl.host import Host
from vfioctl.tui.data.change import Change
from vfioctl.tui.data.feed import Feed
from vfioctl.tui.model.marks import ASCII, marks_for
from vfioctl.tui.model.sheet import View
from vfioctl.tui.screens.bars import bar, keys_line, status
from vfioctl.tui.screens.sheets import Arrangement, Known
from vfioctl.tui.terminal import AsciiOnly, Terminal, WithoutColours
from vfioctl.tui.theme import CSS, TERMINAL
from vfioctl.tui.widgets.page import Page
from vfioctl.tui.widgets.table import Table


class Shell(App[int]):
    """The lines and the tables, empty at first. Results in the signal that ended it; 0 if the user did."""

    CSS = CSS
    TITLE = "vfioctl"

    def __init__(self, host: Host, feed: Feed, *, environment: Mapping[str, str] = os.environ) -> None:
        kept = os.environ.pop("NO_COLOR", None)  # textual would make it grey, and take it from the environment
        super().__init__(driver_class=Terminal)
        if kept is not None:
            os.environ["NO_COLOR"] = kept
        self.register_theme(TERMINAL)
        self.theme = "terminal"
        self.host, self.feed, self.marks = host, feed, marks_for(environment)
        self._extra: list[LineFilter] = [WithoutColours()] if environment.get("NO_COLOR") else []
        self._extra += [AsciiOnly()] if self.marks is ASCII else []
        self.view = View.DEVICES
        self.known: Known | None = None
        self.arrangements = dict.fromkeys(View, Arrangement())
        self.problem = ""
        """Why the last reading failed; empty if it did not."""
        self.change: Change | None = None
        """The change that is under way."""
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
        with Horizontal(id="filter-line"):
            yield Static("filter: ", id="filter-label", markup=False)
            yield Input(placeholder="words that a row must have", id="filter", compact=True, select_on_focus=False)
        yield Static(id="message", markup=False)
        yield Static(id="keys", markup=False)

    @property
    def main(self) -> Screen[object]:
        """The screen below the dialogs."""
        return self.screen_stack[0]

    @property
    def is_over(self) -> bool:
        """Whether the application is ending, and its widgets may be gone: timers and threads may still call it."""
        return not self.screen_stack or not self.main.query("#details")

    @property
    def table(self) -> Table:
        """The table of the screen that is shown."""
        return self.table_of(self.view)

    def table_of(self, view: View) -> Table:
        """The table of a screen."""
        return self.main.query_one(f"#{view.name.lower()}", Table)

    @property
    def message(self) -> str:
        """The sentence above the keys while nothing else is said."""
        return ""

    def draw_bars(self) -> None:
        """Draw the lines around the table."""
        width = self.size.width
        since = self.feed.reading_since
        waits = time.monotonic() - since if since else 0.0
        description = self.host.session.kernel.description
        self._line("bar", bar(self.view, width))
        self._line("status", status(self.known, description, self.problem, waits, width))
        self._line("keys", keys_line(len(self.table.selected), width))
        message = self._said or self.message
        self._line("message", Text(plain(message), style="bold", no_wrap=True, overflow="ellipsis"))
        self.main.query_one("#message").set_class(bool(message), "shown")

    def _line(self, name: str, text: Text) -> None:
        line = self.main.query_one(f"#{name}", Static)
        if getattr(line, "shown", None) != text:
            line.shown = text  # type: ignore[attr-defined] # what it shows, so that equal text is not drawn again
            line.update(text)

    def say(self, text: str) -> None:
        """Show a sentence until the next key."""
        self._said = text
        self.draw_bars()
