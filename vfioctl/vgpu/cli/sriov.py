"""`vfioctl sriov`: the number of VFs of a PF, and the profiles of xe cards."""

from itertools import pairwise
from typing import Annotated, Any

import typer

from vfioctl.console.changes import carry_out
from vfioctl.console.choice import opened
from vfioctl.console.lazy import Command, group_app
from vfioctl.console.options import AsJson, DryRun, Foreign, Persistent, Wait, Yes, device_argument
from vfioctl.console.waiting import Board, seconds_in
from vfioctl.errors import BadSpec
from vfioctl.inventory.api import suggest_devices
from vfioctl.vgpu.api import VgpuApi
from vfioctl.vgpu.cli.change import pairs

app = group_app("sriov")

Physical = Annotated[
    str, device_argument(suggest_devices, metavar="PF", meaning="The physical function: 0000:41:00.0, 41:00.0 or gpu0.")
]


@app.group_with_examples("""
  vfioctl sriov set 00:02.0 4 --simulate laptop
  vfioctl sriov off 00:02.0 --simulate laptop
  vfioctl sriov profile 03:00.0 vf2/exec_quantum_ms=10 --simulate xe""")
def sriov() -> None:
    """Set the number of VFs of a PF, and profiles of xe cards."""


class _SetCommand(Command):
    """`sriov set`. The parser would take a negative number for an option, and call it unknown."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for before, word in pairwise(["", *args]):
            if word[:1] == "-" and word[1:].isdecimal() and not before.startswith("-"):
                _number(word)
        return super().parse_args(ctx, args)


@app.with_examples(
    """
  vfioctl sriov set 00:02.0 4 --simulate laptop
  vfioctl sriov set gpu0 all --persistent --dry-run --simulate l40s""",
    name="set",
    cls=_SetCommand,
)
def set_count(  # noqa: PLR0913 - one parameter for each option
    ctx: typer.Context,
    device: Physical,
    count: Annotated[str, typer.Argument(metavar="COUNT", help="Number of VFs, or all.")],
    *,
    foreign: Foreign = False,
    persistent: Persistent = False,
    wait: Wait = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    yes: Yes = False,
) -> None:
    """Set the number of VFs of a PF. The kernel binds no drivers to the new VFs.

    Changing the count sets it to 0 first, so the existing VFs must be free: without vGPUs, not in use, and not bound
    to vfio-pci. For NVIDIA GPUs, vfioctl runs NVIDIA's sriov-manage, which turns on all VFs. Afterwards the VFs are
    counted; if there are fewer than requested, everything is rolled back."""
    number, session = _number(count), opened(ctx)
    with Board() as board:
        plan = VgpuApi(session).plan_vfs(
            device, number, foreign=foreign, persistent=persistent, wait=seconds_in(wait), waiting=board.show
        )
    carry_out(session, plan, dry_run=dry_run, yes=yes, as_json=as_json)


@app.with_examples("""
  vfioctl sriov set 00:02.0 4 --simulate laptop
  vfioctl sriov off 00:02.0 --wait 60s --simulate laptop""")
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
    """Set the number of VFs of a PF to 0.

    They must be free: without vGPUs, not in use, and not bound to vfio-pci."""
    set_count(ctx, device, "0", foreign=foreign, wait=wait, dry_run=dry_run, as_json=as_json, yes=yes)


@app.with_examples("""
  vfioctl sriov profile 03:00.0 vf1/exec_quantum_ms=20 vf1/preempt_timeout_us=40000 --simulate xe
  vfioctl sriov profile 03:00.0 pf/sched_priority=high --dry-run --simulate xe""")
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
    """Set scheduling and memory limits of the PF or a VF of an xe card."""
    session = opened(ctx)
    plan = VgpuApi(session).plan_profile(device, pairs(values))
    carry_out(session, plan, dry_run=dry_run, yes=yes, as_json=as_json)


def _number(text: str) -> int | None:
    if text == "all":
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 6):
        raise BadSpec(f"not a number of VFs: {text[:40]!r}", hint="give a number from 0, or all")
    return int(text)
