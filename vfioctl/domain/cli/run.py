"""`vfioctl domain start`, `stop` and `apply`. May not add behaviour to the api."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vfioctl.console.changes import agree_on_terminal, progress_lines, reporting
from vfioctl.console.choice import opened
from vfioctl.console.lazy import App
from vfioctl.console.options import AsJson, Yes
from vfioctl.console.output import draw, emit, emit_document, say, width
from vfioctl.console.waiting import seconds_in
from vfioctl.domain.api import DomainApi
from vfioctl.domain.cli.domain import Connect, DryRun, Name

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vfioctl.domain.model.fleet import FleetDocument
    from vfioctl.domain.run.lifecycle import Preview
    from vfioctl.session import Session

_START = """
  vfioctl domain start ml1
  vfioctl domain start ml1 --dry-run"""
_STOP = """
  vfioctl domain stop ml1
  vfioctl domain stop ml1 --timeout 5m
  vfioctl domain stop ml1 --force --yes"""
_DRY = "Nothing was recorded or changed: this is a dry run."
_APPLY = """
  vfioctl domain apply fleet.yaml --dry-run
  vfioctl domain apply fleet.yaml --prune --yes
  vfioctl domain apply fleet.yaml --wait-guest 5m --json"""


def add_to(app: App) -> None:
    """Add the commands to `vfioctl domain`."""
    app.with_examples(_START)(start)
    app.with_examples(_STOP)(stop)
    app.with_examples(_APPLY)(apply)


def start(
    ctx: typer.Context,
    name: Name,
    *,
    connect: Connect = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Claim, bind and verify what a domain needs, then start it.

    Its devices, the CPUs that a vCPU has for itself, and its hugepages are claimed for vm/NAME until the domain ends;
    what vm/NAME has claimed before is used too, and stays claimed. Devices that are in use or claimed by another owner
    are refused. If the domain does not start, everything is rolled back. A running domain is left unchanged."""
    session = opened(ctx)
    lifecycle = DomainApi(session).lifecycle
    if dry_run:
        _show_preview(session, lifecycle.preview(name, connect=connect), as_json=as_json)
        return
    if not yes:
        agree_on_terminal(lambda: _pages(session, lifecycle.preview(name, connect=connect)))
    with reporting():
        done = lifecycle.start(name, connect=connect, progress=progress_lines(session))
    if as_json:
        from vfioctl.domain.render.running import start_document

        emit_document(start_document(done))
        return
    emit(f"Domain {done.name} {'runs already' if done.ran_already else 'started'}.")
    for claim in done.made:
        emit(f"Claim {claim.id} was made for it, and ends with it.")
    for claim in done.kept:
        emit(f"Claim {claim.id} of {claim.owner} serves it, and stays.")


def _pages(session: "Session", preview: "Preview") -> "list[RenderableType]":
    from vfioctl.domain.render.running import start_page

    return [start_page(preview, session.registry)] if preview.plans or preview.over else []


def _show_preview(session: "Session", preview: "Preview", *, as_json: bool) -> None:
    from vfioctl.domain.render.running import start_page, start_preview

    if as_json:
        emit_document(start_preview(preview))
        return
    draw(start_page(preview, session.registry))
    say(_DRY)


def stop(  # noqa: PLR0913 - one parameter for each option
    ctx: typer.Context,
    name: Name,
    *,
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="DURATION", help="Time limit for the shutdown, such as 5m.")
    ] = "60s",
    force: Annotated[bool, typer.Option("--force", help="End the domain at once, as a power cut does.")] = False,
    connect: Connect = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Shut a domain down, and release what was claimed for it.

    The guest is asked to shut down. Then its devices return to their previous drivers, and its CPUs and hugepages are
    free. Claims that vm/NAME had before the domain started stay. If the domain has already ended, only what was
    claimed for it is released."""
    from vfioctl.domain.render.running import stop_document, stop_lines

    session, seconds = opened(ctx), seconds_in(timeout)
    lifecycle = DomainApi(session).lifecycle
    preview = lifecycle.preview_stop(name, connect=connect)
    if dry_run:
        if as_json:
            emit_document(stop_document(preview, dry_run=True))
        else:
            for line in stop_lines(preview, dry_run=True):
                emit(line)
            say(_DRY)
        return
    if not yes and (preview.ran or preview.claims):
        agree_on_terminal(lambda: stop_lines(preview, dry_run=True))
    with reporting():
        done = lifecycle.stop(name, connect=connect, timeout=seconds, force=force, progress=progress_lines(session))
    if as_json:
        emit_document(stop_document(done))
        return
    for line in stop_lines(done):
        emit(line)


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
    not, is reported."""
    session, seconds = opened(ctx), seconds_in(wait_guest)
    api = DomainApi(session)
    fleet = api.fleets.plan(api.fleet(file), prune=prune, connect=connect)
    if seconds:
        fleet.refuse_without_agent()
    for orphan in fleet.orphans:
        say(f"no longer in the file: {orphan}; it stays, --prune undefines domains that are shut off")
    if dry_run:
        _show(fleet.document("dry run"), as_json=as_json)
        return
    if not (yes or fleet.nothing_to_do):
        from vfioctl.domain.render.domains import fleet_page

        agree_on_terminal(lambda: [fleet_page(fleet.document("dry run"), width=width())])
    with reporting():
        done = api.fleets.apply(fleet, wait_guest=seconds, tell=say, progress=progress_lines(session))
    _show(done, as_json=as_json)


def _show(document: "FleetDocument", *, as_json: bool) -> None:
    if as_json:
        from vfioctl.domain.render.domains import without_passwords

        emit_document(without_passwords(document.model_dump(mode="json")))
        return
    if document.result == "nothing to do":
        emit("Nothing to do, all domains are as the file says.")
        return
    from vfioctl.domain.render.domains import fleet_page

    draw(fleet_page(document, width=width()))
    if document.result == "dry run":
        say("Nothing was changed: this is a dry run.")
