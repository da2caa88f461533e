"""The page of a change under way. Leaving it leaves the change alone: it goes on in its thread."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Static

from vfioctl.console.words import plain
from vfioctl.tui.dialogs.dialog import SCROLLING, Dialog, text_line, title_line
from vfioctl.tui.screens.progress import progress_lines, state_line
from vfioctl.tui.widgets.choice import Choices
from vfioctl.tui.widgets.page import Page, drawn

if TYPE_CHECKING:
    from vfioctl.core.registry import Registry
    from vfioctl.tui.data.change import Change


class ProgressPage(Dialog[str]):
    """Results in `again` if the plan was stale and a new one is wanted."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("k", "cancel", show=False),
        Binding("q", "leave", show=False),
        Binding("a", "again", show=False),
        *SCROLLING,
    ]

    def __init__(self, change: Change, registry: Registry) -> None:
        super().__init__()
        self._change, self._registry = change, registry
        self._shown: tuple[object, ...] = ()

    def compose(self) -> ComposeResult:
        """Make the page."""
        yield title_line(self._change.title)
        yield Page()
        yield text_line(id="state")
        yield Choices(("Leave it running", "leave"), ("k: cancel, and roll back", "cancel"))

    async def on_mount(self) -> None:
        """Follow the change."""
        self.query_one(Choices).focus_first()
        self.set_interval(0.25, self.follow)
        await self.follow()

    async def follow(self) -> None:
        """Draw what has happened by now."""
        change, now = self._change, time.monotonic()
        is_done = change.is_done
        if self._shown == ("done",):
            return
        parts = [*progress_lines(change.events, self._registry, change.ended or now, is_done=is_done)]
        shown: tuple[object, ...] = ("done",) if is_done else (len(change.events), int(4 * now))
        if shown == self._shown:
            return
        self._shown = shown
        result = [Text(), *(Text(line, style="bold") for line in change.failure), *change.pages] if is_done else []
        self.query_one(Page).show(drawn([*parts, *result], self.size.width - 3), at_end=True)
        self._say(self._state(now))
        if is_done:
            again = [("a: plan again", "again")] if change.is_stale else []
            await self.query_one(Choices).offer(("Close", "leave"), *again)

    def _state(self, now: float) -> str:
        change = self._change
        if change.is_done:
            return "Failed." if change.failure else "Done."
        cancelled = "It is rolled back after this step. " if change.is_cancelled else ""
        return f"{cancelled}Under way: {state_line(change.events, now, change.began)}."

    def _say(self, text: str) -> None:
        self.query_one("#state", Static).update(Text(plain(text), no_wrap=True, overflow="ellipsis"))

    def action_cancel(self) -> None:
        """Roll the change back after the step that is under way."""
        if not self._change.is_done:
            self._change.cancel()
            self._say(self._state(time.monotonic()))

    def action_again(self) -> None:
        """Make a new plan in the place of one that was stale."""
        if self._change.is_stale:
            self.finish("again")
