"""`vfioctl hosts`: lists and resets the bundled hosts, for trying commands. May not touch this machine."""

from pathlib import Path
from typing import Annotated

import typer

from vfioctl.console.lazy import Command
from vfioctl.console.options import AsJson
from vfioctl.console.output import draw, emit, emit_json

app = typer.Typer(add_completion=False)


@app.command(
    cls=Command,
    epilog="""[bold]Examples[/]
  vfioctl hosts
  vfioctl inventory --simulate workstation
  vfioctl hosts --reset workstation""",
)
def hosts(
    *,
    reset: Annotated[
        str | None, typer.Option("--reset", metavar="NAME", help="Restore a simulated host to its initial state.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the bundled hosts that --simulate and --host know by name.

    Changes made with --simulate are kept in your own copy of the host until --reset restores its initial state.
    """
    from vfioctl.kernel.recorded.bundled import bundled_hosts, reset_simulated

    if reset is not None:
        file = reset_simulated(reset)
        emit_json({"name": reset, "file": file}) if as_json else emit(f"{reset} was restored to its initial state.")
        return
    bundled = {name: _about(file) for name, file in bundled_hosts().items()}
    if as_json:
        emit_json({"hosts": [{"name": name, "description": about} for name, about in bundled.items()]})
        return
    from vfioctl.console.columns import fact_grid

    draw(fact_grid(bundled.items(), style="bold"))


def _about(file: Path) -> str:
    """Return the origin of a host file: its second line up to a semicolon."""
    with file.open(encoding="utf-8") as text:
        text.readline()
        return text.readline().lstrip("# ").partition(";")[0].strip()
