"""`vfioctl sriov`: how many VFs a PF has, and what each of an xe card may take."""

from typing import Annotated

import typer

from vfioctl.console.changes import carry_out, preview
from vfioctl.console.choice import chosen
from vfioctl.console.lazy import HelpfulCommand, HelpfulGroup
from vfioctl.console.options import AsJson, DryRun, Foreign, Persistent, Wait, Yes
from vfioctl.console.waiting import planned
from vfioctl.errors import BadSpec
from vfioctl.inventory.completion import complete_device
from vfioctl.vgpu.cli.change import pairs

app = typer.Typer(
    name="sriov", cls=HelpfulGroup, invoke_without_command=True, add_completion=False, rich_markup_mode="rich"
)

Physical = Annotated[
    str,
    typer.Argument(
        metavar="PF", help="The physical function: 0000:41:00.0, 41:00.0 or gpu0.", autocompletion=complete_device
    ),
]


@app.callback(
    epilog="""[bold]Examples[/]
  vfioctl sriov set 00:02.0 4 --simulate laptop
  vfioctl sriov off 00:02.0 --simulate laptop
  vfioctl sriov profile 03:00.0 vf2/exec_quantum_ms=10 --simulate xe"""
)
def sriov(ctx: typer.Context) -> None:
    """Turn the VFs of a PF on and off, and set what each may take."""
    if ctx.invoked_subcommand is None:
        ctx.get_help()
        raise typer.Exit(2)


@app.command(
    "set",
    cls=HelpfulCommand,
    epilog="""[bold]Examples[/]
  vfioctl sriov set 00:02.0 4 --simulate laptop
  vfioctl sriov set gpu0 all --persistent --dry-run --simulate l40s""",
)
def set_count(  # noqa: PLR0913 - one parameter for each option
    ctx: typer.Context,
    device: Physical,
    count: Annotated[str, typer.Argument(metavar="COUNT", help="How many VFs, or all.")],
    *,
    foreign: Foreign = False,
    persistent: Persistent = False,
    wait: Wait = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    yes: Yes = False,
) -> None:
    """Give a PF so many VFs, which find no drivers by themselves.

    Their number becomes another by way of none, so VFs that are there must be free: no vGPUs on them, nobody who holds
    them, none on VFIO. The VFs of NVIDIA's GPUs are turned on by its sriov-manage, all at once. Afterwards the links to
    the VFs are counted; with fewer than asked for, everything is put back.
    """
    _change(
        ctx,
        device,
        _number(count),
        foreign=foreign,
        persistent=persistent,
        wait=wait,
        dry_run=dry_run,
        as_json=as_json,
        ask=not yes,
    )


@app.command(
    cls=HelpfulCommand,
    epilog="""[bold]Examples[/]
  vfioctl sriov set 00:02.0 4 --simulate laptop
  vfioctl sriov off 00:02.0 --wait 60s --simulate laptop""",
)
def off(
    ctx: typer.Context,
    device: Physical,
    *,
    foreign: Foreign = False,
    wait: Wait = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    yes: Yes = False,
) -> None:
    """Turn all VFs of a PF off.

    They must be free: no vGPUs on them, nobody who holds them, none on VFIO.
    """
    _change(ctx, device, 0, foreign=foreign, persistent=False, wait=wait, dry_run=dry_run, as_json=as_json, ask=not yes)


@app.command(
    cls=HelpfulCommand,
    epilog="""[bold]Examples[/]
  vfioctl sriov profile 03:00.0 vf1/exec_quantum_ms=20 vf1/preempt_timeout_us=40000 --simulate xe
  vfioctl sriov profile 03:00.0 pf/sched_priority=high --dry-run --simulate xe""",
)
def profile(
    ctx: typer.Context,
    device: Physical,
    values: Annotated[
        list[str], typer.Argument(metavar="SCOPE/NAME=VALUE", help="As vgpu types lists them: vf1/exec_quantum_ms=20.")
    ],
    *,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    yes: Yes = False,
) -> None:
    """Set what the PF, or a VF, of an xe card may take of it."""
    host = chosen(ctx).open()
    plan = host.plan_profile(device, pairs(values))
    if dry_run:
        preview(plan, as_json=as_json)
    else:
        carry_out(host, plan, ask=not yes, as_json=as_json)


def _change(  # noqa: PLR0913 - one parameter for each option
    ctx: typer.Context,
    device: str,
    count: int | None,
    *,
    foreign: bool,
    persistent: bool,
    wait: str | None,
    dry_run: bool,
    as_json: bool,
    ask: bool,
) -> None:
    host = chosen(ctx).open()
    plan = planned(lambda: host.plan_vfs(device, count, foreign=foreign, persistent=persistent), wait=wait)
    if dry_run:
        preview(plan, as_json=as_json)
    else:
        carry_out(host, plan, ask=ask, as_json=as_json)


def _number(text: str) -> int | None:
    if text == "all":
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 6):
        raise BadSpec(f"not a number of VFs: {text[:40]!r}", hint="say a number, or all")
    return int(text)
