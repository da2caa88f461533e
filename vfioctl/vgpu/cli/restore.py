"""`vfioctl vgpu restore`: creates what is persistent. systemd runs it at boot."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from vfioctl.console.changes import confirm_all, preview, progress_lines, reporting, tell_all
from vfioctl.console.choice import opened
from vfioctl.console.lazy import Command
from vfioctl.console.options import AsJson, DryRun, Yes
from vfioctl.console.output import emit, emit_json, say_error
from vfioctl.console.waiting import seconds_in
from vfioctl.errors import VfioctlError
from vfioctl.vgpu.api import VgpuApi

if TYPE_CHECKING:
    from vfioctl.vgpu.lifecycle.restore import Restored

_EPILOG = """[bold]Examples[/]
  vfioctl vgpu restore --dry-run --simulate a2
  vfioctl vgpu restore --wait 60s --simulate l40s"""


def add_to(app: typer.Typer) -> None:
    """Adds the command to `vfioctl vgpu`."""
    app.command(cls=Command, epilog=_EPILOG)(restore)


def restore(
    ctx: typer.Context,
    *,
    wait: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="Retry failures for this long, such as 60s: at boot, drivers may be missing."
        ),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Create the VFs and vGPUs that were created with --persistent, usually at boot.

    VFs are created first, then vGPUs. What exists already is left unchanged. A failure does not prevent the others from
    being created; all failures are listed at the end.
    """
    session = opened(ctx)
    seconds = seconds_in(wait)
    api = VgpuApi(session)
    if not (dry_run or yes):
        confirm_all(session, lambda: api.restore(dry_run=True).plans)
    with reporting():
        restored = api.restore(wait=seconds, progress=progress_lines(session), dry_run=dry_run)
    if as_json:
        _emit_document(restored)
        if restored.failures:
            raise typer.Exit(next(iter(restored.failures.values())).exit_code)
        return
    for plan in restored.plans:
        preview(session, plan, as_json=False)
    tell_all(session, restored.outcomes)
    if not (restored.plans or restored.outcomes or restored.failures):
        emit("All persistent VFs and vGPUs exist." if restored.files else "Nothing is persistent.")
    _report_failures(restored.failures)


def _emit_document(restored: "Restored") -> None:
    """Prints one JSON object: the plans of a dry run, the outcomes, and the failures by file."""
    emit_json(
        {
            "plans": [plan.model_dump(mode="json") for plan in restored.plans],
            "outcomes": [outcome.model_dump(mode="json") for outcome in restored.outcomes],
            "failures": {
                name: {"message": error.message, "hint": error.hint} for name, error in restored.failures.items()
            },
        }
    )


def _report_failures(failures: Mapping[str, VfioctlError]) -> None:
    """Prints all failures, then raises the first one with the messages of all."""
    if not failures:
        return
    first = next(iter(failures.values()))
    for name, error in failures.items():
        say_error(f"vfioctl: {name}: {error.message}")
    listed = "; ".join(f"{name}: {error.message}" for name, error in failures.items())
    first.message = f"{len(failures)} could not be created again: {listed}"
    raise first
