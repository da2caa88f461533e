"""`vfioctl vgpu restore`: what was made with --persistent, made again. Run at boot by systemd."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from vfioctl.cli.change import preview, progress, tell
from vfioctl.cli.choice import chosen
from vfioctl.cli.lazy import HelpfulCommand
from vfioctl.cli.options import AsJson, DryRun
from vfioctl.cli.output import emit, say
from vfioctl.cli.waiting import seconds_in
from vfioctl.errors import Stuck, VfioctlError

if TYPE_CHECKING:
    from vfioctl.host import Host
    from vfioctl.model.change import Outcome

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
    """Make VFs and slices again that were made with --persistent, as after a boot.

    VFs first, then slices; what is there already is left as it is. One that cannot be made keeps no other from being
    made, and is told at the end.
    """
    host = chosen(ctx).open()
    if not dry_run:
        host.recover()  # what a reboot cut short is over
    failures: list[tuple[str, VfioctlError]] = []
    outcomes: list[Outcome] = []
    until = time.monotonic() + seconds_in(wait)
    for name in host.kept():
        try:
            if outcome := _restored(host, name, until, dry_run=dry_run):
                outcomes.append(outcome)
        except VfioctlError as error:
            failures.append((name, error))
            say(f"vfioctl: {name}: {error.message}")
    if as_json:
        emit("[" + ",\n".join(outcome.model_dump_json(indent=2) for outcome in outcomes) + "]")
    elif not dry_run:
        tell(outcomes)
    if failures:
        _, first = failures[0]
        told = "; ".join(f"{name}: {error.message}" for name, error in failures)
        first.message = f"{len(failures)} could not be made again: {told}"
        raise first


def _restored(host: "Host", name: str, until: float, *, dry_run: bool) -> "Outcome | None":
    while True:
        try:
            plan = host.plan_kept(name)
            if plan is None or plan.nothing_to_do:
                return None
            if dry_run:
                preview(plan, as_json=False)
                return None
            return host.apply(plan, progress=progress)
        except VfioctlError as error:
            if isinstance(error, Stuck) or time.monotonic() >= until:
                raise
        time.sleep(_PAUSE)
