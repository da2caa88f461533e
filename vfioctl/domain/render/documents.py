"""Renders what build, check, diff and edit say about a document. May not read the host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from vfioctl.console import words
from vfioctl.console.columns import Whole, fact_grid, note_lines
from vfioctl.domain.document.summary import Changed
from vfioctl.domain.model.build import Comparison
from vfioctl.domain.model.finding import CheckDocument, Finding, Severity
from vfioctl.domain.model.layout import Choice

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow"}


def comparison_page(comparison: Comparison) -> RenderableType:
    """Render the values that differ, by path."""
    how = "as it runs" if comparison.running else "as it is defined"
    if not comparison.differences:
        return Text(f"Domain {comparison.name}, {how}, is what would be built for its devices.")
    lines: list[RenderableType] = [Text(f"Domain {comparison.name}, {how}:", style="bold")]
    for difference in comparison.differences:
        lines.append(Text(difference.path))
        lines.append(fact_grid([("  is", _value(difference.found)), ("  would be", _value(difference.built))]))
    return Stack(*lines)


def changes_page(changes: Sequence[Changed]) -> RenderableType:
    """Render what becomes of a definition."""
    return Stack(Text(), Text("In the definition", style="bold"), Padding.indent(fact_grid(changes), 2))


def _value(value: str | None) -> str:
    return "not there" if value is None else value or "there"


def findings_page(document: CheckDocument) -> RenderableType:
    """Each finding with its line, its path, its rule and its remedy, in the order of the document."""
    lines = [line for finding in document.findings for line in _finding_lines(finding)]
    return Stack(*lines, *([Text(_works(document))] if document.ok else []))


def _finding_lines(finding: Finding) -> Iterator[RenderableType]:
    where = f"line {finding.line}: " if finding.line is not None else ""
    head = Text(finding.severity.value, style=_STYLES[finding.severity], overflow="fold")
    yield head.append(f": {where}{finding.reason} [{finding.rule}]", style="not bold default")
    yield Whole(f"at {finding.path}")
    yield Whole(f"-> {finding.remedy}")


def _works(document: CheckDocument) -> str:
    against = "on this host" if document.host else "as far as the document shows"
    warnings = f", with {words.counted(len(document.findings), 'warning')}" if document.findings else ""
    return f"The domain would work {against}{warnings}."


def choices_page(choices: Sequence[Choice]) -> RenderableType:
    """Render the choices of a build, each with its reason, and at the end what is weaker."""
    return Stack(*(line for choice in choices for line in _choice_lines(choice)), *_weaker(choices))


def _choice_lines(choice: Choice) -> Iterator[RenderableType]:
    yield Text.assemble((f"{choice.what}:", "bold"), f" {choice.chosen}")
    for text in (choice.why, *(f"not {reason}" for reason in choice.excluded)):
        yield Padding(Text(text), (0, 0, 0, 2), expand=False)


def _weaker(choices: Sequence[Choice]) -> Iterator[RenderableType]:
    weaker = [f"{choice.what}: {choice.weaker}" for choice in choices if choice.weaker]
    if weaker:
        yield Text()
        yield Text("What is weaker than it could be", style="bold")
        yield from note_lines(weaker)
