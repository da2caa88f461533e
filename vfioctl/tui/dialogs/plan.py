"""The page of a plan, exactly as a dry run prints it. Cancel has the focus; only `y` applies what is shown."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Static

from vfioctl.console.words import plain
from vfioctl.errors import VfioctlError
from vfioctl.tui.data.change import failed
from vfioctl.tui.data.threads import start
from vfioctl.tui.dialogs.dialog import SCROLLING, Dialog, text_line, title_line
from vfioctl.tui.widgets.choice import Choices
from vfioctl.tui.widgets.page import Lines, Page, drawn

if TYPE_CHECKING:
    from vfioctl.tui.data.prepare import Prepared

Make = Callable[[int], "Prepared"]
"""Makes what the page shows for a number of columns. Called in a thread. May raise VfioctlError."""


class Planned(Message):
    """The plan is made, or it is known why not."""

    def __init__(self, number: int, prepared: Prepared | None, lines: Lines) -> None:
        super().__init__()
        self.number, self.prepared, self.lines = number, prepared, lines


class PlanPage(Dialog["Prepared"]):
    """Results in what is to be applied."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "apply", show=False),
        Binding("n,q", "leave", show=False),
        Binding("a", "again", show=False),
        *SCROLLING,
    ]

    def __init__(self, title: str, make: Make) -> None:
        super().__init__()
        self._title, self._make = title, make
        self._began, self._number = time.monotonic(), 0
        self._prepared: Prepared | None = None
        self.is_made = False
        """Whether the plan is there, or the reason why there is none."""

    def compose(self) -> ComposeResult:
        """Make the page, empty at first."""
        yield title_line(self._title)
        yield Page()
        yield text_line(id="state")
        yield Choices(("Cancel", "leave"))

    def on_mount(self) -> None:
        """Make the plan."""
        self.query_one(Choices).focus_first()
        self.set_interval(0.5, self._tick)
        self.action_again()

    def action_again(self) -> None:
        """Make a new plan."""
        if self._number and not self.is_made:
            return
        self._number, self.is_made, self._prepared = self._number + 1, False, None
        self._began = time.monotonic()
        number, width = self._number, self.size.width - 3
        self._tick()

        def plan() -> None:
            prepared: Prepared | None = None
            try:
                prepared = self._make(width)
                lines = drawn(prepared.pages, width)
            except VfioctlError as error:
                lines = drawn((Text(line) for line in failed(error)), width)
            self.post_message(Planned(number, prepared, lines))

        start("plan", plan)

    def _tick(self) -> None:
        if not self.is_made:
            self._say(f"Planning, {time.monotonic() - self._began:.0f} s. Nothing is changed.")

    def _say(self, text: str) -> None:
        self.query_one("#state", Static).update(Text(plain(text), no_wrap=True, overflow="ellipsis"))

    async def on_planned(self, event: Planned) -> None:
        """Show the plan."""
        if event.number != self._number:
            return
        self.is_made, self._prepared = True, event.prepared
        self.query_one(Page).show(event.lines)
        choices = self.query_one(Choices)
        if event.prepared is None:
            self._say("This cannot be done now. Nothing was changed.")
            await choices.offer(("Close", "leave"), ("a: plan again", "again"))
        elif event.prepared.apply is None:
            self._say("Nothing has to be changed.")
            await choices.offer(("Close", "leave"))
        else:
            self._say("Nothing is changed yet. Up and Down scroll.")
            await choices.offer(("Cancel", "leave"), ("y: apply this plan", "apply"))

    def action_apply(self) -> None:
        """Apply the plan that is shown."""
        if self._prepared and self._prepared.apply:
            self.finish(self._prepared)
