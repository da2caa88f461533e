"""`vfioctl reset`: resets one device. May not affect another device that is in use."""

from typing import Annotated

import typer

from vfioctl.binding.api import BindingApi
from vfioctl.console.changes import carry_out
from vfioctl.console.choice import opened
from vfioctl.console.lazy import App
from vfioctl.console.options import AsJson, DryRun, ForceHolders, Wait, Yes, device_argument
from vfioctl.console.waiting import Board, seconds_in
from vfioctl.inventory.api import suggest_devices

app = App(add_completion=False)


@app.with_examples("""
  vfioctl reset 41:00.0 --dry-run --simulate lab
  vfioctl reset 42:00.0 --method flr --yes --simulate lab""")
def reset(  # noqa: PLR0913 - one parameter for each option
    ctx: typer.Context,
    device: Annotated[str, device_argument(suggest_devices)],
    *,
    method: Annotated[
        str | None, typer.Option(metavar="NAME", help="Use this reset method, such as flr; `vfioctl show` lists them.")
    ] = None,
    wait: Wait = None,
    force_holders: ForceHolders = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    yes: Yes = False,
) -> None:
    """Reset a device that is not in use.

    Uses the kernel's first reset method, or the one given. A bus reset also resets all other devices below the same
    bridge, and is refused while one of them is in use. The boot display, and a GPU that NVIDIA's driver keeps open, are
    refused too. Afterwards vfioctl reads the configuration space: a device that does not answer is marked as dead and
    kept from guests."""
    session = opened(ctx)
    with Board() as board:
        plan = BindingApi(session).plan_reset(
            device, method=method, force_holders=force_holders, wait=seconds_in(wait), waiting=board.show
        )
    carry_out(session, plan, dry_run=dry_run, yes=yes, as_json=as_json)
