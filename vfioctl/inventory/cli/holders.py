"""`vfioctl holders`: who uses some devices."""

import typer

from vfioctl.console.changes import tell_unfinished
from vfioctl.console.choice import chosen
from vfioctl.console.lazy import HelpfulCommand
from vfioctl.console.options import AsJson, Devices, Every
from vfioctl.console.output import draw, emit

app = typer.Typer(add_completion=False)


@app.command(
    cls=HelpfulCommand,
    epilog="""[bold]Examples[/]
  vfioctl holders gpu0 --simulate busy
  vfioctl holders gpu1 gpu3 --simulate busy
  vfioctl holders 03:00.0 --simulate busy --json""",
)
def holders(ctx: typer.Context, devices: Devices, *, every: Every = False, as_json: AsJson = False) -> None:
    """List who uses a device.

    Processes with an open file or a mapping on any of its device files, wherever these lie, with their unit, container,
    pod or guest; disks and network interfaces in use; vGPUs; the text console. Looks at the whole card and at what
    shares its IOMMU group. A mediated device is named by its UUID. As root all processes can be read; otherwise it says
    how many could not.
    """
    host = chosen(ctx).open()
    found = host.holders(devices, every=every)
    tell_unfinished(host)
    if as_json:
        emit(found.model_dump_json(indent=2))
        return
    from vfioctl.inventory.render.holders import holders_page

    draw(holders_page(found))
