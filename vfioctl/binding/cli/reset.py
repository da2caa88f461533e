"""`vfioctl reset`: one device, by a method that hits no other in use."""

from typing import Annotated

import typer

from vfioctl.console.changes import carry_out, preview
from vfioctl.console.choice import chosen
from vfioctl.console.lazy import HelpfulCommand
from vfioctl.console.options import AsJson, Device, DryRun, ForceHolders, Wait, Yes
from vfioctl.console.waiting import planned

app = typer.Typer(add_completion=False)


@app.command(
    cls=HelpfulCommand,
    epilog="""[bold]Examples[/]
  vfioctl reset 41:00.0 --dry-run --simulate lab
  vfioctl reset 42:00.0 --method flr --yes --simulate lab""",
)
def reset(  # noqa: PLR0913 - one parameter for each option
    ctx: typer.Context,
    device: Device,
    *,
    method: Annotated[
        str | None, typer.Option(metavar="NAME", help="One of those that show lists: flr, bus, pm, ...")
    ] = None,
    wait: Wait = None,
    force_holders: ForceHolders = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    yes: Yes = False,
) -> None:
    """Reset a device that nobody uses.

    By the kernel's first method, or the one named. A bus reset takes down all below the same bridge, and is refused
    while any other of these is in use; so is the boot display, and a GPU that NVIDIA's driver keeps open. Afterwards
    its configuration space is read: a device that does not answer is said to be dead, marked, and kept from guests.
    """
    host = chosen(ctx).open()
    plan = planned(lambda: host.plan_reset(device, method=method, force_holders=force_holders), wait=wait)
    if dry_run:
        preview(plan, as_json=as_json)
    else:
        carry_out(host, plan, ask=not yes, as_json=as_json)
