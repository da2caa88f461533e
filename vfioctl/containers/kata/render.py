"""Renders the check of Kata."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group as Stack
from rich.console import RenderableType

from vfioctl.console.columns import Column, Layout, Whole
from vfioctl.containers.kata.check import Finding

_WORDS = {True: "ok", False: "wrong", None: "unknown"}
_COLUMNS = (Column("CHECK"), Column(""), Column("FOUND"))


def findings_page(findings: Sequence[Finding], *, width: int) -> RenderableType:
    """The lines of the check, each remedy below its line. `width`: of the terminal, in columns."""
    return Stack(*_lines(findings, width))


def _lines(findings: Sequence[Finding], width: int) -> Iterator[RenderableType]:
    rows = [(each.name, _WORDS[each.ok], each.found) for each in findings]
    layout = Layout(_COLUMNS, rows, width)
    yield from layout.header()
    for each, line in zip(findings, layout.lines(rows, cut=False), strict=True):
        yield line
        if each.remedy:
            yield Whole(f"-> {each.remedy}")
