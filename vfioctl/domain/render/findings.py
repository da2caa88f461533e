"""Renders what is wrong with a domain's XML."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.text import Text

from vfioctl.console.columns import Whole
from vfioctl.domain.model.finding import CheckDocument, Finding, Severity

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow"}


def findings_page(document: CheckDocument) -> RenderableType:
    """Each finding with its line, its path, its rule and its remedy, in the order of the document."""
    lines = [line for finding in document.findings for line in _lines(finding)]
    return Stack(*lines, *([Text(_works(document))] if document.ok else []))


def _lines(finding: Finding) -> Iterator[RenderableType]:
    where = f"line {finding.line}: " if finding.line is not None else ""
    head = Text(finding.severity.value, style=_STYLES[finding.severity], overflow="fold")
    yield head.append(f": {where}{finding.reason} [{finding.rule}]", style="not bold default")
    yield Whole(f"at {finding.path}")
    yield Whole(f"-> {finding.remedy}")


def _works(document: CheckDocument) -> str:
    against = "on this host" if document.host else "as far as the document tells"
    warnings = f", with {counted(len(document.findings), 'warning')}" if document.findings else ""
    return f"The domain would work {against}{warnings}."


def counted(number: int, word: str) -> str:
    """Return a number of things in words."""
    return f"1 {word}" if number == 1 else f"{number} {word}s"
