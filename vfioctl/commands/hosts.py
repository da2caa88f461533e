"""`vfioctl hosts`: the hosts that come with vfioctl, to try things on."""

from pathlib import Path
from typing import Annotated

import typer

from vfioctl.console.lazy import HelpfulCommand
from vfioctl.console.options import AsJson
from vfioctl.console.output import draw, emit, emit_json

app = typer.Typer(add_completion=False)


@app.command(
    cls=HelpfulCommand,
    epilog="""[bold]Examples[/]
  vfioctl hosts
  vfioctl inventory --simulate workstation
  vfioctl hosts --reset workstation""",
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
    from vfioctl.kernel.recorded.bundled import bundled_hosts, reset_simulated

    if reset is not None:
        file = reset_simulated(reset)
        emit_json({"name": reset, "file": file}) if as_json else emit(f"{reset} is as it was at the start.")
        return
    bundled = {name: _about(file) for name, file in bundled_hosts().items()}
    if as_json:
        emit_json({"hosts": [{"name": name, "description": about} for name, about in bundled.items()]})
        return
    from vfioctl.console.history_table import hosts_table

    draw(hosts_table(bundled))


def _about(file: Path) -> str:
    """A host file says in its second line where it comes from; up to a semicolon for whom it may concern."""
    with file.open(encoding="utf-8") as text:
        text.readline()
        return text.readline().lstrip("# ").partition(";")[0].strip()
