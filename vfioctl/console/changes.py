"""Shared by all changing commands: show the plan, ask, apply it, show the outcome. May not know a kind of change."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from vfioctl.console.choice import on_this_host
from vfioctl.console.output import OutputLost, draw, emit_document, say, sketch, working
from vfioctl.errors import Cancelled, VfioctlError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vfioctl.core.change import Outcome, Plan, Repair
    from vfioctl.core.events import Progress, StepEvent
    from vfioctl.core.published import BeingChanged
    from vfioctl.core.registry import Registry


T = TypeVar("T")


class Session(Protocol):
    """The methods of `vfioctl.session.Session` that this module uses."""

    @property
    def registry(self) -> Registry: ...

    @property
    def problem(self) -> str: ...

    def marks(self) -> Sequence[object]: ...

    def being_changed(self) -> tuple[BeingChanged, ...]: ...

    def from_ledger(self, ask: Callable[[], T], empty: T) -> tuple[T, str]: ...

    def apply(self, plan: Plan, *, progress: Progress | None = None) -> Outcome: ...


class Declined(VfioctlError):
    """The user answered no."""


Pages = Callable[[], Sequence["RenderableType"]]


def carry_out(
    session: Session, plan: Plan, *, dry_run: bool = False, yes: bool, as_json: bool, details: Pages = tuple
) -> None:
    """Show a dry run; else ask on a terminal, apply, and tell. `details`: shown below the plan. Raises Declined."""
    if dry_run:
        preview(session, plan, as_json=as_json, details=details)
        return
    confirm(session, plan, details, yes=yes)
    with reporting():
        outcome = session.apply(plan, progress=progress_lines(session))
    tell(session, outcome, as_json=as_json)


@contextmanager
def reporting() -> Iterator[None]:
    """Add the outcome of the change to the message of an interrupt."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        restored = getattr(interrupt, "restored", "")
        interrupt.args = (f"interrupted: {restored or 'vfioctl history says what was done'}",)
        raise


def preview(session: Session, plan: Plan, *, as_json: bool, details: Pages = tuple) -> None:
    """Show the plan of a dry run; as JSON in the form that `vfioctl apply` reads."""
    if as_json:
        emit_document(plan)
        return
    from vfioctl.console.plan_page import planned_page

    draw(planned_page(plan, session.registry))
    if not plan.nothing_to_do:
        for page in details():
            draw(page)
        say("Nothing was changed: this is a dry run.")


def confirm(session: Session, plan: Plan, details: Pages = tuple, *, yes: bool = False) -> None:
    """Show the plan and ask for confirmation if stdin is a terminal; otherwise say its warnings. Raises Declined."""
    if plan.nothing_to_do:
        return
    if asks(yes=yes):
        confirm_all(session, lambda: [plan], details)
        return
    for note in plan.notes:
        say(f"note: {note}")


def confirm_all(session: Session, planned: Callable[[], Sequence[Plan | Repair]], details: Pages = tuple) -> None:
    """Show what is planned, if anything, and ask for confirmation if stdin is a terminal. Raises Declined."""

    def pages() -> Sequence[RenderableType]:
        shown = planned()
        from vfioctl.console.plan_page import planned_page

        return [*(planned_page(plan, session.registry) for plan in shown), *(details() if shown else ())]

    agree_on_terminal(pages)


def asks(*, yes: bool = False) -> bool:
    """Return whether a command asks for confirmation: not with `--yes`, nor without a terminal."""
    return not yes and all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def agree_on_terminal(pages: Pages) -> None:
    """Show what would be done, if anything, and ask for confirmation if stdin is a terminal. Raises Declined."""
    shown = pages() if asks() else ()
    if not shown:
        return
    import typer

    for page in shown:
        sketch(page)
    say("")
    try:
        with redirect_stdout(sys.stderr):  # typer lets input() write the end of the question to stdout
            agreed = typer.confirm("Continue?", err=True)
    except typer.Abort as abort:
        if isinstance(abort.__context__, KeyboardInterrupt):
            raise abort.__context__ from None
        agreed = False
    if not agreed:
        raise Declined("not confirmed: nothing was changed", hint="--yes continues without asking")


def tell(session: Session, outcome: Outcome, *, as_json: bool) -> None:
    """Write the outcome of one change to stdout."""
    try:
        if as_json:
            emit_document(outcome)
        else:
            tell_all(session, [outcome])
    except OutputLost as lost:
        lost.message = f"the change is done ({outcome.result}), but {lost.message}"
        raise


def tell_all(session: Session, outcomes: Sequence[Outcome]) -> None:
    """Write outcomes as text to stdout."""
    from vfioctl.console.plan_page import outcome_page

    for outcome in outcomes:
        draw(outcome_page(outcome, session.registry))


def tell_unfinished(session: Session, *, damage: bool = False) -> None:
    """Warn on stderr about each unfinished change: a listing may then show a half-done state.

    Also about a configuration that cannot be used. `damage`: also about a ledger that cannot be read; pages that list
    warnings say it themselves."""
    if session.problem:
        say(f"vfioctl: {session.problem}")
    none: tuple[BeingChanged, ...] = ()
    no_marks: Sequence[object] = ()
    changes, problem = session.from_ledger(session.being_changed, none)
    if damage:
        problem = problem or session.from_ledger(session.marks, no_marks)[1]  # an unknown boot has unknown marks
    if problem and damage:
        say(f"vfioctl: {problem}")
    for change in changes:
        say(f"vfioctl: a change of {', '.join(change.subjects)} {_how_it_stands(change)}")


def _how_it_stands(change: BeingChanged) -> str:
    if change.under_way:
        return f"is under way (process {change.process})"
    return f"was interrupted; to finish it: {on_this_host('vfioctl recover')}"


def progress_lines(session: Session) -> Progress:
    """Return a progress callback that writes a line to stderr before each step, a rollback, and a wait for the lock."""
    return partial(_say_event, session.registry)


def _say_event(registry: Registry, event: StepEvent) -> None:
    if event.kind == "begin" and event.step:
        say(f"[{event.number}/{event.total}] {registry.action(event.step).progress(event.step)}")
        working(f"step {event.number} of {event.total}", timeout=event.timeout)
    elif event.kind == "rollback":
        say(f"{_failure(event)}, rolling back")
        working("rolling back")
    elif event.kind == "lock":
        say(f"waiting for another vfioctl that is changing this host, for at most {event.timeout:g} s")
        working("waiting", timeout=event.timeout)
    elif event.kind == "verify":
        working("verifying")


def _failure(event: StepEvent) -> str:
    if event.step:
        return f"failed at step {event.number}"
    if isinstance(event.error, Cancelled):
        return "cancelled"
    return "verification failed" if isinstance(event.error, VfioctlError) else "interrupted"
