"""`vfioctl label`: toys get a label."""

from typing import Annotated

import typer

from tests.toy.api import ToyApi
from vfioctl.console.changes import carry_out
from vfioctl.console.choice import opened
from vfioctl.console.lazy import Command
from vfioctl.console.options import AsJson, DryRun, Yes

app = typer.Typer(add_completion=False)


@app.command(cls=Command)
def label(
    ctx: typer.Context,
    toys: Annotated[list[str], typer.Argument()],
    *,
    text: Annotated[str, typer.Option()],
    dry_run: DryRun = False,
    as_json: AsJson = False,
    yes: Yes = False,
) -> None:
    """Give toys a label."""
    session = opened(ctx)
    carry_out(session, ToyApi(session).plan_label(toys, text), dry_run=dry_run, yes=yes, as_json=as_json)
