"""`vfioctl bind`: devices to vfio-pci."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from vfioctl.console.changes import carry_out, preview
from vfioctl.console.choice import chosen
from vfioctl.console.lazy import HelpfulCommand
from vfioctl.console.options import (
    AsJson,
    Devices,
    DryRun,
    Every,
    ForceHolders,
    StopService,
    StopServices,
    Wait,
    WithGroup,
    Yes,
)
from vfioctl.console.waiting import planned

if TYPE_CHECKING:
    from vfioctl.core.change import Plan

app = typer.Typer(add_completion=False)


@app.command(
    cls=HelpfulCommand,
    epilog="""[bold]Examples[/]
  vfioctl bind gpu1 --dry-run --simulate hgx8
  vfioctl bind 0b:00.0 --simulate workstation
  vfioctl bind gpu3 --dry-run --stop-services --simulate busy
  vfioctl bind 10de:2330 --every --dry-run --json --simulate hgx8 > plan.json""",
)
def bind(  # noqa: PLR0913 - one parameter for each option
    ctx: typer.Context,
    devices: Devices,
    *,
    driver: Annotated[
        str | None, typer.Option(metavar="NAME", help="Another VFIO driver than the best one for each function.")
    ] = None,
    with_group: WithGroup = False,
    allow_boot_vga: Annotated[
        bool, typer.Option("--allow-boot-vga", help="Even the GPU that shows the boot messages and the console.")
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
    """Hand devices to vfio-pci, ready for a guest.

    The whole card goes together, with all functions of its IOMMU groups; bridges stay. The driver is vfio-pci, or the
    VFIO variant made for that function. What somebody uses is refused, naming them; nothing is ever killed. The driver
    is made to let go first: persistence mode, unbindLock, consoles. It counts as done when a fresh look at the host
    finds every function there and the kernel calls the group viable; otherwise everything is put back.
    """
    host = chosen(ctx).open()
    units = units_to_stop(stop_service or (), known=stop_services)

    def plan_it() -> "Plan":
        return host.plan_bind(
            devices,
            every=every,
            driver=driver,
            with_group=with_group,
            allow_boot_vga=allow_boot_vga,
            stop_services=units,
            force_holders=force_holders,
        )

    plan = planned(plan_it, wait=wait)
    if dry_run:
        preview(plan, as_json=as_json)
    else:
        carry_out(host, plan, ask=not yes, as_json=as_json)


def units_to_stop(named: Sequence[str], *, known: bool) -> tuple[str, ...]:
    """The units that may be stopped: those named, and with `--stop-services` those that only look after GPUs."""
    if not named and not known:
        return ()
    from vfioctl.host import gpu_services

    given = (name if name.endswith(".service") else f"{name}.service" for name in named)
    return tuple(dict.fromkeys([*given, *(gpu_services() if known else ())]))
