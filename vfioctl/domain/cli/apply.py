"""`vfioctl domain apply`. May not add behaviour to the api."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vfioctl.console.changes import agree_on_terminal, progress_lines, reporting
from vfioctl.console.choice import opened
from vfioctl.console.lazy import Command
from vfioctl.console.options import AsJson, Yes
from vfioctl.console.output import draw, emit, emit_json, say, width
from vfioctl.console.waiting import seconds_in
from vfioctl.domain.api import DomainApi
from vfioctl.domain.cli.options import Connect, DryRun

if TYPE_CHECKING:
    from vfioctl.domain.model.fleet import FleetDocument

_APPLY = """[bold]Examples[/]
  vfioctl domain apply fleet.yaml --dry-run
  vfioctl domain apply fleet.yaml --prune --yes
  vfioctl domain apply fleet.yaml --wait-guest 5m --json"""


def add_to(app: typer.Typer) -> None:
    """Add the command to `vfioctl domain`."""
    app.command(cls=Command, epilog=_APPLY)(apply)


def apply(  # noqa: PLR0913 - one parameter for each option
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The fleet: YAML in *.yaml, otherwise TOML.")],
    *,
    prune: Annotated[
        bool, typer.Option("--prune", help="Also undefine domains of this fleet that the file no longer names.")
    ] = False,
    wait_guest: Annotated[
        str | None,
        typer.Option("--wait-guest", metavar="DURATION", help="Wait until the agents of running guests answer."),
    ] = None,
    connect: Connect = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Apply a file that describes several domains.

    All domains are planned first, so that no device or CPU goes to two of them; if one cannot be built, nothing is
    changed. A domain whose part of the file has not changed stays as it is, and a second run does nothing. Domains that
    vfioctl did not define are never changed or removed. The first failure ends the run; what was done, and what was
    not, is reported.
    """
    session, seconds = opened(ctx), seconds_in(wait_guest)
    api = DomainApi(session)
    fleet = api.fleets.plan(api.fleet(file), prune=prune, connect=connect)
    if dry_run:
        _show(fleet.document("dry run"), as_json=as_json)
        return
    if not (yes or fleet.nothing_to_do):
        from vfioctl.domain.render.fleet import fleet_page

        agree_on_terminal(lambda: [fleet_page(fleet.document("dry run"), width=width())])
    with reporting():
        done = api.fleets.apply(fleet, wait_guest=seconds, tell=say, progress=progress_lines(session))
    _show(done, as_json=as_json)


def _show(document: "FleetDocument", *, as_json: bool) -> None:
    if as_json:
        from vfioctl.domain.render.fleet import without_passwords

        emit_json(without_passwords(document.model_dump(mode="json")))
        return
    if document.result == "nothing to do":
        emit("Nothing to do, all domains are as the file says.")
        return
    from vfioctl.domain.render.fleet import fleet_page

    draw(fleet_page(document, width=width()))
    if document.result == "dry run":
        say("Nothing was changed: this is a dry run.")
