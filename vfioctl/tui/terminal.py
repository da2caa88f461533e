"""How the terminal is used: its size, what it can show, and how it is left. May not know what is shown.

Builds on textual's driver for Linux, whose version is limited in pyproject.toml."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from functools import lru_cache
from typing import Any, TextIO

from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.drivers.linux_driver import LinuxDriver
from textual.filter import LineFilter

_FOLDED = str.maketrans(
    {
        **dict.fromkeys("│┃▏▕▎▍▌▐█▋▊▉║", "|"),
        **dict.fromkeys("─━▁▔▂▃▄▀═", "-"),
        **dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╯╰┏┓┗┛╔╗╚╝", "+"),
        "…": "~",
    }
)


class Tolerant:
    """The terminal as a file. When it is gone, what is written is lost: the signal that says so ends the program."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        """Write a text; ignore that the terminal is gone."""
        try:
            return self._file.write(text)
        except (OSError, ValueError):
            return len(text)

    def flush(self) -> None:
        """Flush; ignore that the terminal is gone."""
        with suppress(OSError, ValueError):
            self._file.flush()

    def fileno(self) -> int:
        """Return the descriptor of the terminal."""
        return self._file.fileno()

    def isatty(self) -> bool:
        """Return whether it is a terminal."""
        return self._file.isatty()


class Terminal(LinuxDriver):
    """Textual's driver, which writes to stderr."""

    def __init__(self, app: Any, **options: Any) -> None:
        super().__init__(app, **options)
        assert sys.__stderr__ is not None
        self._file: Any = Tolerant(sys.__stderr__)

    def _get_terminal_size(self) -> tuple[int, int]:
        """Ask the terminal that is written to: stdout may be a file, and COLUMNS is not renewed."""
        try:
            columns, lines = os.get_terminal_size(self._file.fileno())
        except (OSError, ValueError):
            return 80, 24
        return columns or 80, lines or 24

    def run_input_thread(self) -> None:
        """Read keys until the end, or until the terminal is gone."""
        with suppress(OSError):  # EIO: the terminal hung up, and SIGHUP says so to the application
            super().run_input_thread()


@lru_cache(maxsize=1024)
def _plain(style: Style) -> Style:
    return Style(bold=style.bold, dim=style.dim, italic=style.italic, underline=style.underline, reverse=style.reverse)


class WithoutColours(LineFilter):
    """No colours at all, as NO_COLOR asks for: textual's own filter still sends colour codes."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return the segments without colours."""
        return [Segment(text, style and _plain(style), control) for text, style, control in segments]


class AsciiOnly(LineFilter):
    """Only ASCII, for terminals that do not show UTF-8. Each character keeps its width."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return the segments in ASCII."""
        return [Segment(folded(text), style, control) for text, style, control in segments]


def folded(text: str) -> str:
    """Return the text in ASCII; lines and corners as `-`, `|`, `+`, other characters as question marks."""
    if text.isascii():
        return text
    from rich.cells import get_character_cell_size

    text = text.translate(_FOLDED)
    return "".join(c if c.isascii() else "?" * get_character_cell_size(c) for c in text)
