"""`vfioctl bind`: binds devices to vfio-pci. May not add behaviour to the api."""

from typing import Annotated

import typer

from vfioctl.binding.api import BindingApi, units_to_stop
from vfioctl.console.changes import carry_out
from vfioctl.console.choice import opened
from vfioctl.console.lazy import App
from vfioctl.console.options import (
    AsJson,
    DryRun,
    Every,
    ForceHolders,
    StopService,
    StopServices,
    Wait,
    WithGroup,
    Yes,
    device_argument,
)
from vfioctl.console.waiting import Board, seconds_in
from vfioctl.inventory.api import suggest_devices

app = App(add_completion=False)


@app.with_examples("""
  vfioctl bind gpu1 --dry-run --simulate hgx8
  vfioctl bind 0b:00.0 --simulate workstation
  vfioctl bind gpu3 --dry-run --stop-services --simulate busy
  vfioctl bind 10de:2330 --every --dry-run --json --simulate hgx8 > plan.json""")
def bind(  # noqa: PLR0913 - one parameter for each option
    ctx: typer.Context,
    devices: Annotated[list[str], device_argument(suggest_devices)],
    *,
    driver: Annotated[
        str | None, typer.Option(metavar="NAME", help="Use this VFIO driver instead of the best one for each function.")
    ] = None,
    with_group: WithGroup = False,
    allow_boot_vga: Annotated[
        bool, typer.Option("--allow-boot-vga", help="Also bind the GPU that shows the boot messages and the console.")
    ] = False,
    persistent: Annotated[
        bool, typer.Option("--persistent", help="Bind them at every boot too, before their own drivers are loaded.")
    ] = False,
    wait: Wait = None,
    stop_services: StopServices = False,
    stop_service: StopService = None,
    force_holders: ForceHolders = False,
    every: Every = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    yes: Yes = False,
) -> None:
    """Bind devices to vfio-pci, ready for a guest.

    All functions of a card are bound together; bridges stay with the host. The driver is vfio-pci, or the VFIO variant
    driver for the function. A device in use is refused, and its holders are listed; no process is ever killed.
    Before the unbind, persistence mode is switched off, and consoles and unbindLock are released. The change succeeds
    if every function is then bound to its VFIO driver and the kernel reports the group as viable; otherwise everything
    is rolled back.

    With --persistent, a definition in /etc/vfioctl/devices.d and a udev rule are written after that was verified. They
    name the device by address, ids and slot path: a boot never binds another one instead. See vfioctl persist."""
    session = opened(ctx)
    with Board() as board:
        plan = BindingApi(session).plan_bind(
            devices,
            every=every,
            driver=driver,
            with_group=with_group,
            allow_boot_vga=allow_boot_vga,
            persistent=persistent,
            stop_services=units_to_stop(stop_service or (), known=stop_services),
            force_holders=force_holders,
            wait=seconds_in(wait),
            waiting=board.show,
        )
    carry_out(session, plan, dry_run=dry_run, yes=yes, as_json=as_json)
