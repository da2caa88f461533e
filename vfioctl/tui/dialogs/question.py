"""Pages without a choice of their own: the help; and the question before the end while a change is under way."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from rich.console import RenderableType
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical

from vfioctl.tui.dialogs.dialog import Dialog, text_line, title_line
from vfioctl.tui.widgets.choice import Choices
from vfioctl.tui.widgets.page import Page, drawn


class Help(Dialog[None]):
    """The keys of a screen."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("q,question_mark,enter", "leave", show=False)]

    def __init__(self, title: str, parts: Iterable[RenderableType]) -> None:
        super().__init__()
        self._title, self._parts = title, tuple(parts)

    def compose(self) -> ComposeResult:
        """Make the page."""
        yield title_line(self._title)
        yield Page()
        yield Choices(("Close", "leave"))

    def on_mount(self) -> None:
        """Draw the page."""
        page = self.query_one(Page)
        page.show(drawn(self._parts, self.size.width - 3))
        page.focus()


class Quit(Dialog[str]):
    """What to do with the change that is under way. Results in `wait`, `cancel`, or nothing."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "cancel", show=False),
        Binding("w", "wait", show=False),
    ]

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title = title

    def compose(self) -> ComposeResult:
        """Make the question."""
        with Vertical(classes="box"):
            yield title_line("A change is under way")
            yield text_line(self._title)
            yield text_line()
            yield Choices(("Stay", "leave"), ("c: roll back, then quit", "cancel"), ("w: quit when done", "wait"))

    def on_mount(self) -> None:
        """Staying is the first choice."""
        self.query_one(Choices).focus_first()

    def action_cancel(self) -> None:
        """Roll back, and quit then."""
        self.finish("cancel")

    def action_wait(self) -> None:
        """Quit when the change is done."""
        self.finish("wait")
