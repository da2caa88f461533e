"""What bind, unbind, apply and recover share: show the plan, ask, carry it out, tell the outcome."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from vfioctl.console.output import OutputLost, draw, emit, say, sketch
from vfioctl.errors import VfioctlError

if TYPE_CHECKING:
    from vfioctl.core.change import Outcome, Plan, Step
    from vfioctl.host import Host


class Declined(VfioctlError):
    """The answer was no."""


def preview(plan: "Plan", *, as_json: bool) -> None:
    """The dry run: the very plan that would run; as JSON in the form that apply takes."""
    if as_json:
        emit(plan.model_dump_json(indent=2))
        return
    from vfioctl.console.plan_page import plan_page

    draw(plan_page(plan))
    if not plan.nothing_to_do:
        say("Nothing was changed: this is a dry run.")


def carry_out(host: "Host", plan: "Plan", *, ask: bool, as_json: bool) -> None:
    """Asks where there is someone to ask, applies the plan, and tells the outcome."""
    if ask and not plan.nothing_to_do and sys.stdin and sys.stdin.isatty() and sys.stderr and sys.stderr.isatty():
        _confirm(plan)
    try:
        outcome = host.apply(plan, progress=progress)
    except KeyboardInterrupt as interrupt:
        restored = getattr(interrupt, "restored", "")
        raise KeyboardInterrupt(f"interrupted: {restored or 'vfioctl history says what was done'}") from None
    try:
        if as_json:
            emit(outcome.model_dump_json(indent=2))
        else:
            tell([outcome])
    except OutputLost as lost:
        lost.message = f"the change is done ({outcome.result}), but {lost.message}"
        raise


def tell(outcomes: "Sequence[Outcome]") -> None:
    """Outcomes for people."""
    from vfioctl.console.plan_page import outcome_page

    for outcome in outcomes:
        draw(outcome_page(outcome))


def tell_unfinished(host: "Host") -> None:
    """A line on stderr for each change that was cut short: what is listed may then be half of it."""
    for entry in host.unfinished():
        devices = ", ".join(entry.plan.subjects)
        say(f"vfioctl: a change of {devices} was cut short; to finish it: vfioctl recover")


def progress(step: "Step", number: int, total: int) -> None:
    """One line for each step, on stderr, before it is taken."""
    say(f"[{number}/{total}] {_EFFECTS[step.kind](step.target, step.value.strip())}")


_EFFECTS: "Mapping[str, Callable[[str, str], str]]" = {
    "load": lambda target, _: f"load {target}",
    "write": lambda target, value: f"{target} <- {value or '(an empty line)'}",
    "check": lambda target, value: f"nobody holds {f'the {value} of ' if value else ''}{target}?",
    "persistence": lambda target, value: f"persistence mode of {target} {'on' if value == '1' else 'off'}",
    "service": lambda target, value: f"{'start' if value == 'active' else 'stop'} {target}",
    "keep": lambda target, value: f"{'write' if value else 'remove'} {target}",
    "NVIDIA VFs": lambda target, value: f"sriov-manage {'-e' if value == '1' else '-d'} {target}",
}


def _confirm(plan: "Plan") -> None:
    from vfioctl.console.plan_page import plan_page

    sketch(plan_page(plan))
    sys.stderr.write("\nGo on? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise Declined("not confirmed: nothing was changed", hint="--yes goes on without asking")
