"""Renders differences, and what is refused or comes later."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.text import Text

from vfioctl.console.columns import Column, note_lines, table
from vfioctl.state.model.difference import Difference, Later

_COLUMNS = (Column("NAME"), Column("SETTING"), Column("WANTED"), Column("FOUND"))


def differences_page(differences: Sequence[Difference], notes: Iterable[str], *, width: int) -> RenderableType:
    """One row for each difference. `width`: columns of the terminal."""
    rows = [(d.name, d.setting, d.wanted, Text(d.found, style="yellow")) for d in differences]
    return Stack(*table(_COLUMNS, rows, width), *note_lines(notes))


def later_page(later: Sequence[Later], notes: Iterable[str]) -> RenderableType:
    """What is planned when the other plans are done."""
    lines = [Text(), Text("Planned after that", style="bold"), *(Text(f"  {w.name}: {w.what}") for w in later)]
    return Stack(*(lines if later else ()), *note_lines(notes))
