"""Renders a comparison of a domain with what would be built. May not read the host."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from vfioctl.console.columns import fact_grid
from vfioctl.domain.document.summary import Changed
from vfioctl.domain.model.comparison import Comparison


def comparison_page(comparison: Comparison) -> RenderableType:
    """Render the values that differ, by path."""
    how = "as it runs" if comparison.running else "as it is defined"
    if not comparison.differences:
        return Text(f"Domain {comparison.name}, {how}, is what would be built for its devices.")
    lines: list[RenderableType] = [Text(f"Domain {comparison.name}, {how}:", style="bold")]
    for difference in comparison.differences:
        lines.append(Text(difference.path))
        lines.append(fact_grid([("  is", _told(difference.found)), ("  would be", _told(difference.built))]))
    return Stack(*lines)


def changes_page(changes: Sequence[Changed]) -> RenderableType:
    """Render what becomes of a definition."""
    return Stack(Text(), Text("In the definition", style="bold"), Padding.indent(fact_grid(changes), 2))


def _told(value: str | None) -> str:
    return "not there" if value is None else value or "there"
