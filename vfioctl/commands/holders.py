"""`vfioctl holders`: lists who uses devices. May not change anything."""

from typing import Annotated

import typer

from vfioctl.console.changes import tell_unfinished
from vfioctl.console.choice import opened
from vfioctl.console.lazy import App
from vfioctl.console.options import AsJson, Every, device_argument
from vfioctl.console.output import draw, emit_document, width
from vfioctl.host import Host
from vfioctl.inventory.api import suggest_devices

app = App(add_completion=False)


@app.with_examples("""
  vfioctl holders gpu0 --simulate busy
  vfioctl holders gpu1 gpu3 --simulate busy
  vfioctl holders 03:00.0 --simulate busy --json""")
def holders(
    ctx: typer.Context,
    devices: Annotated[list[str], device_argument(suggest_devices)],
    *,
    every: Every = False,
    as_json: AsJson = False,
) -> None:
    """List who uses a device.

    Lists processes that have a device file open or mapped, with their unit, container, pod or guest; disks and network
    interfaces in use; vGPUs; and the text console. Covers the whole card and its IOMMU group. Name a mediated device by
    its UUID, or the first characters of it. Run it as root to read all processes; otherwise it reports how many it
    could not read."""
    session = opened(ctx)
    held = Host(session).holders(devices, every=every)
    tell_unfinished(session, damage=True)
    if as_json:
        emit_document(held)
        return
    from vfioctl.inventory.render.holders import holders_page

    draw(holders_page(held, width=width()))
