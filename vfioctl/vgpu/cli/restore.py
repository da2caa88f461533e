"""`vfioctl vgpu restore`: what was made with --persistent, made again. Run at boot by systemd."""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from vfioctl.console.changes import preview, progress, tell
from vfioctl.console.choice import chosen
from vfioctl.console.lazy import HelpfulCommand
from vfioctl.console.options import AsJson, DryRun
from vfioctl.console.output import emit, say
from vfioctl.console.waiting import seconds_in
from vfioctl.errors import BadDocument, Stuck, VfioctlError

if TYPE_CHECKING:
    from vfioctl.core.change import Outcome, Plan
    from vfioctl.host import Host

_PAUSE = 1.0

_EPILOG = """[bold]Examples[/]
  vfioctl vgpu restore --dry-run --simulate a2
  vfioctl vgpu restore --wait 60s --simulate l40s"""


def add_to(app: typer.Typer) -> None:
    """Adds the command to `vfioctl vgpu`."""
    app.command(cls=HelpfulCommand, epilog=_EPILOG)(restore)


def restore(
    ctx: typer.Context,
    *,
    wait: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Try again for so long, as 60s: at boot a driver may not be there yet."),
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Make VFs and vGPUs again that were made with --persistent, as after a boot.

    VFs first, then vGPUs; what is there already is left as it is. One that cannot be made keeps no other from being
    made, and is told at the end.
    """
    host = chosen(ctx).open()
    failures: dict[str, VfioctlError] = {}
    outcomes: list[Outcome] = []
    plans: list[Plan] = []
    if not dry_run:
        _recovered(host, failures)
    until = time.monotonic() + seconds_in(wait)
    kept = host.kept()
    waiting = list(kept)
    while waiting:
        instead = plans if dry_run else None
        waiting = [name for name in waiting if _is_to_try_again(host, name, instead, outcomes, failures)]
        if time.monotonic() >= until:
            break
        if waiting:
            time.sleep(_PAUSE)
    if as_json:
        _emit_document(plans, outcomes, failures)
    elif not dry_run:
        tell(outcomes)
        if not (outcomes or failures):
            emit("Everything that is kept is there." if kept else "Nothing is kept.")
    else:
        for plan in plans:
            preview(plan, as_json=False)
    if failures and as_json:
        raise typer.Exit(next(iter(failures.values())).exit_code)
    _tell_failures(failures)


def _emit_document(plans: "list[Plan]", outcomes: "list[Outcome]", failures: Mapping[str, VfioctlError]) -> None:
    """One object: what would be done, what was done, and by file what could not be."""
    import json

    told = {name: {"message": error.message, "hint": error.hint} for name, error in failures.items()}
    planned = [plan.model_dump(mode="json") for plan in plans]
    done = [outcome.model_dump(mode="json") for outcome in outcomes]
    emit(json.dumps({"plans": planned, "outcomes": done, "failures": told}, indent=2))


def _recovered(host: "Host", failures: dict[str, VfioctlError]) -> None:
    """What a reboot cut short is over; what cannot be finished keeps nothing else from being made."""
    try:
        host.recover(of_this_boot=False)
    except VfioctlError as error:
        failures["recover"] = error


def _is_to_try_again(
    host: "Host",
    name: str,
    plans: "list[Plan] | None",
    outcomes: "list[Outcome]",
    failures: dict[str, VfioctlError],
) -> bool:
    """`plans`: where they are to be gathered, and not carried out."""
    try:
        plan = host.plan_kept(name)
        if plan is not None and not plan.nothing_to_do:
            if plans is not None:
                plans.append(plan)
            else:
                outcomes.append(host.apply(plan, progress=progress))
        failures.pop(name, None)
    except VfioctlError as error:
        failures[name] = error
        return not isinstance(error, (Stuck, BadDocument))  # no waiting helps these
    return False


def _tell_failures(failures: dict[str, VfioctlError]) -> None:
    """Raises the first, with what all of them say."""
    if not failures:
        return
    first = next(iter(failures.values()))
    for name, error in failures.items():
        say(f"vfioctl: {name}: {error.message}")
    told = "; ".join(f"{name}: {error.message}" for name, error in failures.items())
    first.message = f"{len(failures)} could not be made again: {told}"
    raise first
