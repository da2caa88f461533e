"""What all pages that open over the screens share: a title, a page or a table, a line of keys."""

from __future__ import annotations

from typing import ClassVar, TypeVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import Static

from vfioctl.console.words import plain
from vfioctl.tui.widgets.choice import Choice
from vfioctl.tui.widgets.page import Page

Result = TypeVar("Result")
SCROLLING = tuple(
    Binding(key, f"scroll('{name}')", show=False)
    for key, name in (("up", "scroll_up"), ("down", "scroll_down"), ("pageup", "page_up"), ("pagedown", "page_down"))
)
"""The keys that scroll the page of a dialog while one of its buttons has the focus."""


class Dialog(ModalScreen[Result]):
    """A page over the screens. Escape leaves it without a result."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", show=False)]

    _is_over = False

    def finish(self, result: Result | None) -> None:
        """Close it with a result, once: a second key may come before it is closed."""
        if not self._is_over:
            self._is_over = True
            self.dismiss(result)

    def action_leave(self) -> None:
        """Close it."""
        self.finish(None)

    def action_scroll(self, name: str) -> None:
        """Scroll the page."""
        getattr(self.query_one(Page), f"action_{name}")()

    def on_choice_pressed(self, event: Choice.Pressed) -> None:
        """Do what a button says."""
        getattr(self, f"action_{event.action}")()


def title_line(text: str) -> Static:
    """Return the title of a page."""
    return Static(Text(plain(text), style="bold reverse", no_wrap=True, overflow="ellipsis"), classes="title")


def text_line(text: str = "", *, id: str | None = None) -> Static:  # noqa: A002 - textual's name
    """Return a line of text, whose markup is never read."""
    return Static(Text(plain(text), no_wrap=True, overflow="ellipsis"), id=id, markup=False)
