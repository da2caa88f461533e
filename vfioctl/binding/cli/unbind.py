"""`vfioctl unbind`: returns devices to their drivers. May not add behaviour to the api."""

from typing import Annotated

import typer

from vfioctl.binding.api import BindingApi
from vfioctl.console.changes import carry_out
from vfioctl.console.choice import opened
from vfioctl.console.lazy import App
from vfioctl.console.options import AsJson, DryRun, Every, ForceHolders, Wait, WithGroup, Yes, device_argument
from vfioctl.console.waiting import Board, seconds_in
from vfioctl.inventory.api import suggest_devices

app = App(add_completion=False)


@app.with_examples("""
  vfioctl unbind gpu1 --simulate hgx8
  vfioctl unbind gpu1 --to nouveau --dry-run --simulate workstation""")
def unbind(  # noqa: PLR0913 - one parameter for each option
    ctx: typer.Context,
    devices: Annotated[list[str], device_argument(suggest_devices)],
    *,
    to: Annotated[str | None, typer.Option(metavar="DRIVER", help="Use this driver, not the previous one.")] = None,
    with_group: WithGroup = False,
    persistent: Annotated[
        bool, typer.Option("--persistent", help="Also at the next boots: remove what bind --persistent wrote.")
    ] = False,
    wait: Wait = None,
    force_holders: ForceHolders = False,
    every: Every = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    yes: Yes = False,
) -> None:
    """Bind devices to their previous drivers again.

    Restores the driver and driver_override from before bind, for the whole card and what was bound with it, and also
    consoles, power settings and services. Without a record, the kernel chooses the driver.
    --to refuses a driver whose aliases do not match the device; the record is kept, so that a later unbind without --to
    restores the driver from before bind. A device that a guest has
    open is refused, because the kernel would wait for the guest forever."""
    session = opened(ctx)
    with Board() as board:
        plan = BindingApi(session).plan_unbind(
            devices,
            every=every,
            to=to,
            with_group=with_group,
            persistent=persistent,
            force_holders=force_holders,
            wait=seconds_in(wait),
            waiting=board.show,
        )
    carry_out(session, plan, dry_run=dry_run, yes=yes, as_json=as_json)
