"""Renders plans, outcomes and repairs. May not know a kind of resource, action, check or fact."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from textwrap import wrap
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.console import Group as Stack
from rich.padding import Padding
from rich.text import Text

from vfioctl.console.choice import on_this_host
from vfioctl.console.columns import Column, Heading, Layout, Whole, note_lines
from vfioctl.console.words import plain
from vfioctl.core.change import Change, Fact, Outcome, Plan, Repair, Result, Step
from vfioctl.core.registry import Registry

_INDENT = 2
_LEAST_ROOM = 12
_WIDE = 1000
"""Width in columns of a page whose rows are never truncated, so that addresses and paths can be copied."""
_WAYS = {
    Result.DONE: "it is completed",
    Result.COMPLETE: "it is already complete",
    Result.BACK: "it goes back to the state before it",
    Result.REBOOTED: "a reboot has undone it; what survives a reboot goes back",
}
"""What `recover` does, by its result."""


def planned_page(planned: Plan | Repair, registry: Registry) -> RenderableType:
    """Render what a command would do."""
    return plan_page(planned, registry) if isinstance(planned, Plan) else repair_page(planned, registry)


def plan_page(plan: Plan, registry: Registry, *, undone_by: Sequence[str] = ()) -> RenderableType:
    """Render a plan. `undone_by`: commands that undo it, if those of its intent do not."""
    if plan.nothing_to_do:
        facts = [*_indented(_facts(plan.facts, registry))]
        said = f"Nothing to do, it is as asked for already{':' if facts else '.'}"
        return Stack(Text(said), *facts, *note_lines(plan.notes))
    changes = change_rows(plan.changes, registry)
    return Stack(
        Text(f"Plan {plan.id}: {plain(plan.intent.title())}", style="bold"),
        *part("Relies on", _facts(plan.facts, registry)),
        *part("Steps", step_lines(plan.steps, registry)),
        *part("What changes", changes),
        *part("Verified afterwards", _verified(plan, registry, changes=bool(changes))),
        *part("Undone by", (Whole(plain(on_this_host(line))) for line in undone_by or plan.intent.undone_by(plan))),
        *note_lines(plan.notes),
    )


def outcome_page(outcome: Outcome, registry: Registry) -> RenderableType:
    """Render the outcome of a plan."""
    plan = outcome.plan
    if outcome.result == Result.NOTHING:
        return plan_page(plan, registry)
    return Stack(
        Heading(
            f"{outcome.result.capitalize()}: {plain(plan.intent.title())}", f"(plan {plan.id}, {outcome.seconds:.2f} s)"
        ),
        *_indented(_found(outcome, registry)),
        *_concluded(outcome, registry),
        *note_lines(outcome.notes),
    )


def repair_page(repair: Repair, registry: Registry) -> RenderableType:
    """Render what `recover` would do with an interrupted change."""
    entry = repair.entry
    heading = Heading(
        f"Cut short: {plain(entry.plan.intent.title())}", f"(plan {entry.plan.id}, began {clock(entry.began)} UTC)"
    )
    if repair.refused:
        return Stack(heading, *_indented([Text(f"cannot be finished now: {plain(repair.refused)}")]))
    if not repair.steps:
        return Stack(heading, *_indented([Text(f"{_WAYS[repair.result]}; nothing is written, the journal is closed")]))
    return Stack(
        heading,
        *_indented([Text(_WAYS[repair.result])]),
        *part("Steps", step_lines(repair.steps, registry)),
        *part("What changes", change_rows(repair.changes, registry)),
    )


def clock(time: str) -> str:
    """Return an ISO 8601 time to the second, with a space instead of the T."""
    return plain(time[:19].replace("T", " "))


def part(name: str, body: Iterable[RenderableType]) -> Iterator[RenderableType]:
    """Yield a heading and its indented body; nothing if the body is empty."""
    lines = list(_indented(body))
    if lines:
        yield Text()
        yield Text(name, style="bold")
        yield from lines


def _indented(body: Iterable[RenderableType]) -> Iterator[RenderableType]:
    return (line if isinstance(line, Whole) else Padding.indent(line, _INDENT) for line in body)


def _facts(facts: Sequence[Fact], registry: Registry) -> Iterator[Text]:
    """Yield one row per fact, aligned by kind; a source may hide some facts."""
    for kind, alike in groupby(facts, key=lambda fact: fact.kind):
        source = registry.source(kind)
        rows = [[plain(cell) for cell in cells] for fact in alike if (cells := source.describe(fact))]
        for _, same in groupby(rows, key=len):
            yield from _aligned(list(same))


def step_lines(steps: Sequence[Step], registry: Registry) -> Iterator[RenderableType]:
    """Yield the steps; adjacent steps with the same reason share one line for it."""
    margin = len(str(len(steps)))
    for why, alike in groupby(enumerate(steps, start=1), key=lambda numbered: numbered[1].why):
        for number, step in alike:
            target, arrow, value = plain(registry.action(step).describe(step)).partition(" <- ")
            yield Whole(f"{number:{margin}}  {target}", f"<- {value}" if arrow else "", hang=margin + 2)
            if step.alternatives:
                others = " or ".join(step.alternatives)
                yield Whole(f"{' ' * margin}  (or {plain(others)}: whichever is registered by then)")
        yield Padding.indent(Text(f"({plain(why)})", style="dim"), margin + 2)


def _verified(plan: Plan, registry: Registry, *, changes: bool) -> Iterator[Text]:
    if changes:
        yield Text("every value above is read again and must be as planned")
    for request in plan.checks:
        yield from (Text(plain(line)) for line in registry.check(request.kind).describe(plan, request.subjects))
    if changes:
        yield Text("otherwise everything is rolled back")


def change_rows(changes: Iterable[Change], registry: Registry) -> list[RenderableType]:
    """Return a table of the changes; nothing if no value changes."""
    rows = _rows(changes, registry)
    return [_Rows(rows)] if rows else []


class _Row(NamedTuple):
    subject: str
    kind: str
    name: str
    before: str
    after: str

    @property
    def cells(self) -> tuple[str, str, str, str]:
        return self.name, self.before, "->", self.after

    @property
    def below_its_subject(self) -> tuple[str, str, str, str]:
        """Return the cells without the device, which the heading names."""
        rest = " ".join(word for word in self.name.split() if word != self.subject).removesuffix(" of")
        return f"{' ' * _INDENT}{rest or self.kind}", self.before, "->", self.after


def _rows(changes: Iterable[Change], registry: Registry) -> list[_Row]:
    """Return the rows whose value changes, by device, each device's own value first."""
    described = ((change, registry.resource(change).describe(change)) for change in changes)
    rows = [
        _Row(plain(change.subject), plain(change.kind), plain(name), plain(before), plain(after))
        for change, (name, before, after) in described
        if before != after
    ]
    order = {subject: number for number, subject in enumerate(dict.fromkeys(row.subject for row in rows))}
    return sorted(rows, key=lambda row: (order[row.subject], row.name != row.subject))


class _Rows:
    """Changes as one table if it fits the width, otherwise as one paragraph per device."""

    def __init__(self, rows: Sequence[_Row]) -> None:
        self._rows = rows

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> Iterator[Text]:
        width = options.max_width
        lines = list(_aligned([row.cells for row in self._rows]))
        several = len({row.subject for row in self._rows}) < len(self._rows)
        if several and any(cell_len(line.plain.rstrip()) > width for line in lines):
            yield from self._paragraphs(width)
        else:
            for row, line in zip(self._rows, lines, strict=True):
                yield from _hanging(row, line, width)

    def _paragraphs(self, width: int) -> Iterator[Text]:
        lines = _aligned([row.below_its_subject for row in self._rows])
        for subject, of_it in groupby(zip(self._rows, lines, strict=True), key=lambda pair: pair[0].subject):
            yield Text(subject)
            for row, line in of_it:
                yield from _hanging(row, line, width)


def _hanging(row: _Row, line: Text, width: int) -> Iterator[Text]:
    """Yield the line; if it is too long, the value after the change wraps below its own start."""
    margin = cell_len(line.plain.rstrip()) - cell_len(row.after)
    if cell_len(line.plain.rstrip()) <= width or width - margin < _LEAST_ROOM:
        yield line
        return
    first, *rest = wrap(row.after, width - margin, break_long_words=False, break_on_hyphens=False)
    yield Text(f"{line.plain.rstrip().removesuffix(row.after)}{first}")
    yield from (Text(f"{' ' * margin}{part}") for part in rest)


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[Text]:
    columns = (Column(""),) * (len(rows[0]) if rows else 0)
    return Layout(columns, rows, _WIDE).flowing(rows) if rows else iter(())


def _found(outcome: Outcome, registry: Registry) -> Iterator[RenderableType]:
    """Yield what changed; if nothing did, the facts of the devices concerned."""
    rows = _rows(outcome.plan.changes, registry) if outcome.result == Result.DONE else []
    if rows:
        yield _Rows(rows)
    else:
        changed = set(outcome.plan.subjects)
        yield from _facts([fact for fact in outcome.found if fact.subject in changed], registry)


def _concluded(outcome: Outcome, registry: Registry) -> Iterator[Text]:
    if outcome.result == Result.DONE:
        for request in outcome.plan.checks:
            lines = registry.check(request.kind).conclude(request.subjects, outcome.report)
            yield from (Text(plain(line)) for line in lines)
