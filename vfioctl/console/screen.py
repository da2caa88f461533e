"""Draws pages, and escapes what could control the terminal. May not choose the text. Imports rich."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from vfioctl.console.words import plain

_ANY_HEIGHT = 25


class Screen(Console):
    """A rich console without markup that writes each text on one line, control characters escaped."""

    def __init__(self, stream: TextIO, width: int) -> None:
        # with TERM=dumb, rich believes a width only together with a height
        super().__init__(file=stream, width=width, height=_ANY_HEIGHT, markup=False, highlight=False, emoji=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as rich does, but with each text escaped."""
        if isinstance(renderable, str):
            renderable = plain(renderable)
        elif isinstance(renderable, Text) and not renderable.plain.isprintable():
            renderable = self._escaped(renderable)
        return super().render(renderable, options)

    def _escaped(self, text: Text) -> Text:
        parts = ((plain(part.text), part.style or "") for part in text.render(self))
        return Text.assemble(*parts, no_wrap=text.no_wrap, overflow=text.overflow)
