"""`vfioctl show`: everything about one function."""

import typer

from vfioctl.console.changes import tell_unfinished
from vfioctl.console.choice import chosen
from vfioctl.console.lazy import HelpfulCommand
from vfioctl.console.options import AsJson, Device
from vfioctl.console.output import draw, emit, width

app = typer.Typer(add_completion=False)


@app.command(
    cls=HelpfulCommand,
    epilog="""[bold]Examples[/]
  vfioctl show gpu1 --simulate hgx8
  vfioctl show 0b:00.0 --simulate workstation
  vfioctl show gpu7 --simulate mi300x --json""",
)
def show(ctx: typer.Context, device: Device, *, as_json: AsJson = False) -> None:
    """Show everything about one device.

    Its driver, its IOMMU group, its place, memory, link, power and virtual functions; and which functions would
    travel with it to a guest, and why.
    """
    from vfioctl.inventory.selector import select

    host = chosen(ctx).open()
    found = host.inventory()
    tell_unfinished(host)
    (address,) = select(found, [device], every=False)
    if as_json:
        emit(found.by_address[address].model_dump_json(indent=2))
        return
    from vfioctl.inventory.render.function import function_page

    draw(function_page(found, address, width=width()))
