"""A page that was drawn elsewhere, as the command line draws it: rich lines that can be scrolled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from io import StringIO
from typing import ClassVar

from rich.console import Group as Stack
from rich.console import RenderableType
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from vfioctl.console.screen import Screen

Lines = Sequence[Strip]


def drawn(parts: Iterable[RenderableType], width: int) -> Lines:
    """Draw renderables for `width` columns. Text of a host is escaped, as in all output of vfioctl; no markup is read.

    Lines that are never wrapped, such as commands to copy, may be longer."""
    screen = Screen(StringIO(), max(20, width))
    options = screen.options.update(width=max(20, width), height=None)
    return [Strip(line) for line in screen.render_lines(Stack(*parts), options, pad=False)]


class Page(ScrollView, can_focus=True):
    """Lines that can be scrolled in both directions."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "scroll_up", show=False),
        Binding("down", "scroll_down", show=False),
        Binding("left", "scroll_left", show=False),
        Binding("right", "scroll_right", show=False),
        Binding("home", "scroll_home", show=False),
        Binding("end", "scroll_end", show=False),
        Binding("pageup", "page_up", show=False),
        Binding("pagedown", "page_down", show=False),
        Binding("space", "page_down", show=False),
    ]

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - textual's name
        super().__init__(id=id)
        self._lines: Lines = ()

    def show(self, lines: Lines, *, at_end: bool = False) -> None:
        """Show other lines. `at_end`: scroll to the last one."""
        self._lines = lines
        widest = max((line.cell_length for line in lines), default=0)
        self.virtual_size = Size(widest, len(lines))
        if at_end:
            to_end = partial(self.scroll_end, animate=False, immediate=True)
            self.call_after_refresh(to_end)
            self.set_timer(0.1, to_end)  # scroll bars that came meanwhile may have taken a line
        self.refresh()

    @property
    def text(self) -> str:
        """The lines without their styles."""
        return "\n".join(line.text.rstrip() for line in self._lines)

    def render_line(self, y: int) -> Strip:
        """Draw one line."""
        left, top = self.scroll_offset
        width = self.scrollable_content_region.width
        if top + y >= len(self._lines):
            return Strip.blank(width)
        return self._lines[top + y].crop_extend(left, left + width, None)
