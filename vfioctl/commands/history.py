"""`vfioctl history`: lists the journal. May not change anything."""

from typing import Annotated

import typer

from vfioctl.console.choice import opened
from vfioctl.console.lazy import Command
from vfioctl.console.options import AsJson
from vfioctl.console.output import draw, emit_json, width
from vfioctl.host import Host

app = typer.Typer(add_completion=False)


@app.command(
    cls=Command,
    epilog="""[bold]Examples[/]
  vfioctl history --simulate hgx8
  vfioctl history -n 3 --json --simulate hgx8""",
)
def history(
    ctx: typer.Context,
    *,
    number: Annotated[int | None, typer.Option("-n", metavar="N", min=1, help="List only the last N changes.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the changes that were made here.

    The newest change comes first. Each line shows when it began, what it did to which devices, and how it ended.
    """
    entries = Host(opened(ctx)).history(most=number or -1)
    if as_json:
        emit_json({"entries": [entry.model_dump(mode="json") for entry in entries]})
        return
    from vfioctl.console.history_page import history_table

    draw(history_table(entries, width=width()))
