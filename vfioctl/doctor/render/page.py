"""Renders what the checks found: problems first, and what is well in few lines. May not read the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from vfioctl.console.columns import Whole
from vfioctl.console.words import counted, plain
from vfioctl.doctor.model.result import DoctorDocument, Result, Status

_SHOWN = (Status.FAIL, Status.UNKNOWN, Status.NOTE)
_STYLES = {Status.FAIL: "bold red", Status.UNKNOWN: "bold yellow", Status.NOTE: "bold", Status.PASS: "green"}
_INDENT = 9
Command = Callable[[str], str]


def doctor_page(document: DoctorDocument, *, everything: bool = False, command: Command = str) -> RenderableType:
    """Render the results. `everything`: also the evidence of what is well, and what does not apply. `command`: returns
    a suggested vfioctl command for the host of this command line."""
    lines: list[RenderableType] = []
    for status in _SHOWN:
        for result in document.results:
            if result.status is status:
                lines += [*_finding(result, command), Text()]
    rest = [result for result in document.results if result.status not in _SHOWN]
    lines += _details(rest) if everything else _passes(rest)
    return Stack(*lines, Text(summary(document), style="bold"))


def finding_page(result: Result, command: Command = str) -> RenderableType:
    """Render one result, also the evidence of what is well. `command`: as for `doctor_page`."""
    return Stack(*_finding(result, command))


def summary(document: DoctorDocument) -> str:
    """Return the last line: the number of findings of each kind."""
    count = [sum(result.status is status for result in document.results) for status in _SHOWN]
    passed = sum(result.status is Status.PASS for result in document.results)
    parts = [counted(count[0], "problem") if count[0] else "No problems", f"{count[1]} could not be told"]
    parts = [parts[0], *(parts[1:] if count[1] else ()), *([counted(count[2], "note")] if count[2] else ())]
    return f"{', '.join(parts)}, {passed} passed."


def _finding(result: Result, command: Command) -> Iterator[RenderableType]:
    head = Text(f"{result.status:<{_INDENT}}", style=_STYLES[result.status])
    yield head.append(result.check, style="bold")
    rows = [("", result.meaning), ("", f"read: {result.evidence}"), ("->", result.remedy)]
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=_INDENT - 1, justify="right")
    grid.add_column(overflow="fold")
    for mark, words in rows:
        if words:
            grid.add_row(mark, Text(plain(words)))
    yield grid
    if result.command:
        yield Whole(f"{'->':>{_INDENT - 3}} {command(result.command)}")


def _indented(text: str) -> RenderableType:
    return Padding(Text(plain(text), overflow="fold"), (0, 0, 0, _INDENT), expand=False)


def _passes(results: Sequence[Result]) -> Iterator[RenderableType]:
    names = dict.fromkeys(result.check for result in results if result.status is Status.PASS)
    if names:
        yield Text("pass", style=_STYLES[Status.PASS])
        yield _indented(", ".join(names))
        yield Text()


def _details(results: Sequence[Result]) -> Iterator[RenderableType]:
    for status in (Status.PASS, Status.NOT_APPLICABLE):
        for result in results:
            if result.status is status:
                yield Text(f"{'pass' if status is Status.PASS else '-':<{_INDENT}}{result.check}")
                yield _indented(result.evidence)
    if results:
        yield Text()
