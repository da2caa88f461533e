"""`vfioctl show`: everything about one function."""

import typer

from vfioctl.cli.choice import chosen
from vfioctl.cli.options import AsJson, Device
from vfioctl.cli.output import draw, emit, width

app = typer.Typer()


@app.command(
    epilog="""[bold]Examples[/]
  vfioctl show gpu0 --simulate hgx8
  vfioctl show 01:00.0 --simulate workstation
  vfioctl show gpu0 --simulate mi300x --json"""
)
def show(ctx: typer.Context, device: Device, *, as_json: AsJson = False) -> None:
    """Show everything about one device.

    Its driver, its IOMMU group, its place, memory, link, power and virtual functions; and which functions would
    travel with it to a guest, and why.
    """
    host = chosen(ctx).open()
    (address,) = host.find([device])
    found = host.inventory()
    if as_json:
        emit(found.by_address[address].model_dump_json(indent=2))
        return
    from vfioctl import render  # noqa: PLC0415 - brings rich

    draw(render.function_page(found, address, width=width()))
