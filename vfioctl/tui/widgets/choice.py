"""A button of one line, and the line of buttons below a page."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult, RenderResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.widget import Widget


class Choice(Widget, can_focus=True):
    """A button. Its key does the same; the screen binds it."""

    DEFAULT_CSS = "Choice { height: 1; width: auto; margin: 0 2 0 0; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "press", show=False),
        Binding("space", "press", show=False),
        Binding("left", "screen.focus_previous", show=False),
        Binding("right", "screen.focus_next", show=False),
    ]

    class Pressed(Message):
        """The button was pressed; `action` is that of its screen."""

        def __init__(self, action: str) -> None:
            super().__init__()
            self.action = action

    def __init__(self, label: str, action: str) -> None:
        """`action`: the name of an action of the screen."""
        super().__init__(id=f"choice-{action.replace('_', '-')}")
        self._label, self._act = label, action

    def render(self) -> RenderResult:
        """Draw it; with the focus, in reverse."""
        text = f"[>{self._label}<]" if self.has_focus else f"[ {self._label} ]"
        return Text(text, style="reverse bold" if self.has_focus else "", no_wrap=True)

    def get_content_width(self, *_: object) -> int:
        """Return the width of the label and its brackets."""
        return len(self._label) + 4

    def on_focus(self) -> None:
        """Draw it with the focus."""
        self.refresh()

    on_blur = on_focus

    def action_press(self) -> None:
        """Press it."""
        self.post_message(self.Pressed(self._act))

    def on_click(self) -> None:
        """Press it."""
        self.action_press()


class Choices(Horizontal):
    """A line of buttons, exchanged as a whole."""

    DEFAULT_CSS = "Choices { height: 1; }"

    def __init__(self, *choices: tuple[str, str]) -> None:
        """`choices`: label and action of each."""
        super().__init__()
        self._given = choices

    def compose(self) -> ComposeResult:
        """Make the buttons."""
        yield from (Choice(label, action) for label, action in self._given)

    async def offer(self, *choices: tuple[str, str]) -> None:
        """Offer others, the first with the focus."""
        if choices == self._given:
            return
        self._given = choices
        await self.remove_children()
        await self.mount_all(Choice(label, action) for label, action in choices)
        self.focus_first()

    def focus_first(self) -> None:
        """Give the focus to the first button."""
        first = next(iter(self.query(Choice)), None)
        if first:
            first.focus()
