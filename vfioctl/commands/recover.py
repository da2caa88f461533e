"""`vfioctl recover`: changes that were cut short."""

from typing import Annotated

import typer

from vfioctl.console.changes import progress, tell
from vfioctl.console.choice import chosen
from vfioctl.console.lazy import HelpfulCommand
from vfioctl.console.options import AsJson
from vfioctl.console.output import emit, emit_json

app = typer.Typer(add_completion=False)


@app.command(
    cls=HelpfulCommand,
    epilog="""[bold]Examples[/]
  vfioctl recover --simulate hgx8
  vfioctl recover --forward --simulate hgx8""",
)
def recover(
    ctx: typer.Context,
    *,
    forward: Annotated[bool, typer.Option("--forward", help="Finish the change instead of taking it back.")] = False,
    as_json: AsJson = False,
) -> None:
    """Finish what a crash or a power cut left half done.

    Takes every unfinished change back to what was recorded before it, or with --forward to what it was to become.
    """
    outcomes = chosen(ctx).open().recover(forward=forward, progress=progress)
    if as_json:
        emit_json({"outcomes": [outcome.model_dump(mode="json") for outcome in outcomes]})
    elif outcomes:
        tell(outcomes)
    else:
        emit("Nothing to recover: no change was cut short.")
