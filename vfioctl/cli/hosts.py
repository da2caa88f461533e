"""`vfioctl hosts`: the hosts that come with vfioctl, to try things on."""

from typing import Annotated

import typer

from vfioctl.cli.options import AsJson
from vfioctl.cli.output import draw, emit, emit_json, width

app = typer.Typer()


@app.command(
    epilog="""[bold]Examples[/]
  vfioctl hosts
  vfioctl inventory --simulate workstation
  vfioctl hosts --reset workstation"""
)
def hosts(
    *,
    reset: Annotated[
        str | None, typer.Option("--reset", metavar="NAME", help="Put a simulated host back to its start.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the bundled hosts that --simulate and --host know by name.

    What is changed on one with --simulate stays in a copy of your own, until --reset puts it back to its start.
    """
    from vfioctl.host import Host  # noqa: PLC0415 - brings pydantic

    if reset is not None:
        Host.reset(reset)
        emit_json({"reset": reset}) if as_json else emit(f"{reset} is as it was at the start.")
        return
    bundled = Host.bundled()
    if as_json:
        emit_json({"hosts": [{"name": name, "description": about} for name, about in bundled.items()]})
        return
    from vfioctl import render  # noqa: PLC0415 - brings rich

    draw(render.hosts_table(bundled, width=width()))
