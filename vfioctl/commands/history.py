"""`vfioctl history`: the journal."""

from typing import Annotated

import typer

from vfioctl.console.choice import chosen
from vfioctl.console.lazy import HelpfulCommand
from vfioctl.console.options import AsJson
from vfioctl.console.output import draw, emit_json, width

app = typer.Typer(add_completion=False)


@app.command(
    cls=HelpfulCommand,
    epilog="""[bold]Examples[/]
  vfioctl history --simulate hgx8
  vfioctl history -n 3 --json --simulate hgx8""",
)
def history(
    ctx: typer.Context,
    *,
    number: Annotated[int | None, typer.Option("-n", metavar="N", min=1, help="Only the last N.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the changes that were made here.

    The newest first: when each began, what it was, on which devices, and how it ended.
    """
    entries = chosen(ctx).open().history(most=number or -1)
    if as_json:
        emit_json({"entries": [entry.model_dump(mode="json") for entry in entries]})
        return
    from vfioctl.console.history_table import history_table

    draw(history_table(entries, width=width()))
