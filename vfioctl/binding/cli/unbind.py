"""`vfioctl unbind`: devices back to the drivers they had."""

from typing import Annotated

import typer

from vfioctl.console.changes import carry_out, preview
from vfioctl.console.choice import chosen
from vfioctl.console.lazy import HelpfulCommand
from vfioctl.console.options import AsJson, Devices, DryRun, Every, ForceHolders, Wait, WithGroup, Yes
from vfioctl.console.waiting import planned

app = typer.Typer(add_completion=False)


@app.command(
    cls=HelpfulCommand,
    epilog="""[bold]Examples[/]
  vfioctl unbind gpu1 --simulate hgx8
  vfioctl unbind gpu1 --to nouveau --dry-run --simulate workstation""",
)
def unbind(  # noqa: PLR0913 - one parameter for each option
    ctx: typer.Context,
    devices: Devices,
    *,
    to: Annotated[str | None, typer.Option(metavar="DRIVER", help="Another driver than the one it had.")] = None,
    with_group: WithGroup = False,
    wait: Wait = None,
    force_holders: ForceHolders = False,
    every: Every = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    yes: Yes = False,
) -> None:
    """Give devices back to the drivers they had.

    The driver and the driver_override that were there before bind are put back, for the whole card and what was bound
    with it, with consoles, power settings and services; where nothing was recorded, the kernel chooses the driver. A
    device that a guest has open is refused: the kernel would wait for the guest for ever.
    """
    host = chosen(ctx).open()
    plan = planned(
        lambda: host.plan_unbind(devices, every=every, to=to, with_group=with_group, force_holders=force_holders),
        wait=wait,
    )
    if dry_run:
        preview(plan, as_json=as_json)
    else:
        carry_out(host, plan, ask=not yes, as_json=as_json)
