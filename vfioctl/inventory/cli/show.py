"""`vfioctl show`: shows everything about one function. May not add behaviour to the api."""

from typing import Annotated

import typer

from vfioctl.console.changes import tell_unfinished
from vfioctl.console.choice import opened
from vfioctl.console.lazy import App
from vfioctl.console.options import AsJson, device_argument
from vfioctl.console.output import draw, emit_document, width
from vfioctl.inventory.api import InventoryApi, suggest_devices

app = App(add_completion=False)


@app.with_examples("""
  vfioctl show gpu1 --simulate hgx8
  vfioctl show 0b:00.0 --simulate workstation
  vfioctl show gpu7 --simulate mi300x --json""")
def show(
    ctx: typer.Context, device: Annotated[str, device_argument(suggest_devices)], *, as_json: AsJson = False
) -> None:
    """Show everything about one device.

    Shows its driver, IOMMU group, place, memory, link, power and virtual functions, and which functions must go to a
    guest together with it, and why."""
    session = opened(ctx)
    api = InventoryApi(session)
    host = api.inventory(near=[device] if as_json else None)  # the page names its GPU, which takes all of them
    tell_unfinished(session, damage=True)
    (address,) = api.chosen(host, [device])
    if as_json:
        emit_document(host.by_address[address])
        return
    from vfioctl.inventory.render.function import function_page

    draw(function_page(host, address, width=width()))
