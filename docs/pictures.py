"""The pictures in the documents: what the program draws, as SVG. Renewed by `pytest --renew-golden`."""

from __future__ import annotations

import re

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import MONOKAI, TerminalTheme

_FORMAT = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
"""Without fonts from the network: a viewer takes its own."""
FOLDER = "../../docs/pictures"
"""Where the pictures are, from the golden files."""


def svg(console: Console, title: str, theme: TerminalTheme = MONOKAI) -> str:
    """Return what a recording console has printed as SVG; the same text gives the same bytes."""
    text = console.export_svg(title=title, theme=theme, unique_id="vfioctl", code_format=_FORMAT)
    return re.sub(r"\d\d:\d\d:\d\d&#160;UTC", "12:00:00&#160;UTC", text)
