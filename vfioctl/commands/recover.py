"""`vfioctl recover`: finishes interrupted changes. May change only what they concern."""

from typing import Annotated

import typer

from vfioctl.console.changes import progress_lines, tell_all
from vfioctl.console.choice import opened
from vfioctl.console.lazy import Command
from vfioctl.console.options import AsJson
from vfioctl.console.output import emit, emit_json
from vfioctl.host import Host

app = typer.Typer(add_completion=False)


@app.command(
    cls=Command,
    epilog="""[bold]Examples[/]
  vfioctl recover --simulate hgx8
  vfioctl recover --forward --simulate hgx8""",
)
def recover(
    ctx: typer.Context,
    *,
    forward: Annotated[bool, typer.Option("--forward", help="Complete the change instead of rolling it back.")] = False,
    as_json: AsJson = False,
) -> None:
    """Finish what a crash or a power cut left half done.

    Rolls every unfinished change back to the state recorded before it, or with --forward completes it.
    """
    session = opened(ctx)
    outcomes = Host(session).recover(forward=forward, progress=progress_lines(session))
    if as_json:
        emit_json({"outcomes": [outcome.model_dump(mode="json") for outcome in outcomes]})
    elif outcomes:
        tell_all(session, outcomes)
    else:
        emit("Nothing to recover: no change was cut short.")
