"""`vfioctl domain start` and `stop`. May not add behaviour to the api."""

from typing import TYPE_CHECKING, Annotated

import typer

from vfioctl.console.changes import agree_on_terminal, progress_lines, reporting
from vfioctl.console.choice import opened
from vfioctl.console.lazy import Command
from vfioctl.console.options import AsJson, Yes
from vfioctl.console.output import draw, emit, emit_json_text, say
from vfioctl.console.waiting import seconds_in
from vfioctl.domain.api import DomainApi
from vfioctl.domain.cli.options import Connect, DryRun, Name

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vfioctl.domain.run.lifecycle import Preview
    from vfioctl.session import Session

_START = """[bold]Examples[/]
  vfioctl domain start ml1
  vfioctl domain start ml1 --dry-run"""
_STOP = """[bold]Examples[/]
  vfioctl domain stop ml1
  vfioctl domain stop ml1 --timeout 5m
  vfioctl domain stop ml1 --force --yes"""
_DRY = "Nothing was recorded or changed: this is a dry run."


def add_to(app: typer.Typer) -> None:
    """Add the commands to `vfioctl domain`."""
    app.command(cls=Command, epilog=_START)(start)
    app.command(cls=Command, epilog=_STOP)(stop)


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
    are refused. If the domain does not start, everything is rolled back. A running domain is left unchanged.
    """
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

        emit_json_text(start_document(done).model_dump_json(indent=2))
        return
    emit(f"Domain {done.name} {'runs already' if done.ran_already else 'started'}.")
    for claim in done.made:
        emit(f"Claim {claim.id} was made for it, and ends with it.")
    for claim in done.kept:
        emit(f"Claim {claim.id} of {claim.owner} serves it, and stays.")


def _pages(session: "Session", preview: "Preview") -> "list[RenderableType]":
    """Return what to agree on: nothing if no device is changed and no claim released."""
    from vfioctl.domain.render.running import start_page

    return [start_page(preview, session.registry)] if preview.plans or preview.over else []


def _show_preview(session: "Session", preview: "Preview", *, as_json: bool) -> None:
    from vfioctl.domain.render.running import start_page, start_preview

    if as_json:
        emit_json_text(start_preview(preview).model_dump_json(indent=2))
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
    claimed for it is released.
    """
    from vfioctl.domain.render.running import stop_document, stop_lines

    session, seconds = opened(ctx), seconds_in(timeout)
    lifecycle = DomainApi(session).lifecycle
    preview = lifecycle.preview_stop(name, connect=connect)
    if dry_run:
        if as_json:
            emit_json_text(stop_document(preview, dry_run=True).model_dump_json(indent=2))
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
        emit_json_text(stop_document(done).model_dump_json(indent=2))
        return
    for line in stop_lines(done):
        emit(line)
