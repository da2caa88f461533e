"""`vfioctl bind`: devices to vfio-pci."""

from typing import Annotated

import typer

from vfioctl.cli.change import carry_out, preview
from vfioctl.cli.choice import chosen
from vfioctl.cli.lazy import HelpfulCommand
from vfioctl.cli.options import AsJson, Devices, DryRun, Every, WithGroup, Yes

app = typer.Typer(add_completion=False)


@app.command(
    cls=HelpfulCommand,
    epilog="""[bold]Examples[/]
  vfioctl bind gpu1 --dry-run --simulate hgx8
  vfioctl bind 0b:00.0 --simulate workstation
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
    every: Every = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    yes: Yes = False,
) -> None:
    """Hand devices to vfio-pci, ready for a guest.

    The whole card goes together, with all functions of its IOMMU groups; bridges stay. The driver is vfio-pci, or the
    VFIO variant made for that function. It counts as done when a fresh look at the host finds every function there and
    the kernel calls the group viable; otherwise everything is put back.
    """
    host = chosen(ctx).open()
    plan = host.plan_bind(
        devices, every=every, driver=driver, with_group=with_group, allow_boot_vga=allow_boot_vga
    )
    if dry_run:
        preview(plan, as_json=as_json)
    else:
        carry_out(host, plan, ask=not yes, as_json=as_json)
