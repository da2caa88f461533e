"""`vfioctl vgpu create`, `remove`, and `restore`, which creates what is persistent; systemd runs it at boot."""

from collections.abc import Sequence
from typing import Annotated, TypedDict

import typer

from vfioctl.console.changes import carry_out, confirm, confirm_all, preview, progress_lines, reporting, tell
from vfioctl.console.choice import opened
from vfioctl.console.lazy import App
from vfioctl.console.options import AsJson, DryRun, ForceHolders, Foreign, Persistent, Wait, Yes
from vfioctl.console.output import say
from vfioctl.console.restored import tell_restored
from vfioctl.console.waiting import Board, seconds_in
from vfioctl.errors import BadSpec
from vfioctl.vgpu.api import VgpuApi
from vfioctl.vgpu.cli.completion import complete_parent, complete_type, complete_vgpu
from vfioctl.vgpu.model.vgpu import Strategy


def add_to(app: App) -> None:
    """Adds the commands to `vfioctl vgpu`."""
    app.with_examples(_CREATE)(create)
    app.with_examples(_REMOVE)(remove)
    app.with_examples(_RESTORE)(restore)


TypeName = Annotated[
    str,
    typer.Argument(
        metavar="TYPE",
        help="The id, name or profile, as listed by vgpu types: nvidia-754, A2-4C, 1155.",
        autocompletion=complete_type,
    ),
]
OnParent = Annotated[
    str | None, typer.Option(metavar="PARENT", help="Only on this card or VF.", autocompletion=complete_parent)
]
OnNode = Annotated[int | None, typer.Option(metavar="NODE", help="Only on cards of this NUMA node.", min=0)]
Count = Annotated[int, typer.Option(metavar="K", help="Number of vGPUs.", min=1, max=65_535)]
Uuids = Annotated[
    list[str] | None, typer.Option("--uuid", metavar="UUID", help="UUID of a mediated device. Repeatable.")
]
Placement = Annotated[
    Strategy,
    typer.Option(
        help="binpack keeps the largest types creatable; spread places each vGPU on the card with the fewest; numa "
        "uses as few NUMA nodes as possible."
    ),
]
Parameters = Annotated[
    list[str] | None,
    typer.Option(
        "--param",
        metavar="NAME=VALUE",
        help="A parameter of NVIDIA's vgpu_params, or placement_id; DIR/FILE=VALUE for any other file of the vGPU.",
    ),
]
_CREATE = """
  vfioctl vgpu create A2-4C --dry-run --simulate a2
  vfioctl vgpu create L40S-12Q --count 2 --placement spread --simulate l40s
  vfioctl vgpu create T4-4C --param frame_rate_limiter=0 --persistent --simulate t4"""
_REMOVE = """
  vfioctl vgpu remove 41:00.4 --foreign --dry-run --simulate l40s
  vfioctl vgpu remove 6d3f2c1a --foreign --simulate a2"""


class Wish(TypedDict):
    """The common parameters of `VgpuApi.plan_create` and `VgpuApi.create`."""

    parent: str | None
    numa: int | None
    count: int
    uuids: Sequence[str]
    placement: Strategy
    parameters: Sequence[tuple[str, str]]
    persistent: bool


def create(  # noqa: PLR0913 - one parameter for each option
    ctx: typer.Context,
    type_name: TypeName,
    *,
    parent: OnParent = None,
    numa: OnNode = None,
    count: Count = 1,
    uuid: Uuids = None,
    placement: Placement = Strategy.BINPACK,
    param: Parameters = None,
    persistent: Persistent = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    yes: Yes = False,
) -> None:
    """Create vGPUs of a type: all of them, or none.

    vfioctl selects cards with free capacity; the plan gives the reasons. Afterwards it verifies that each vGPU exists
    with its type and a node for a guest to open; if not, everything is rolled back. If another process takes the
    capacity first, vfioctl tries other cards, unless --parent is given."""
    wish = Wish(
        parent=parent,
        numa=numa,
        count=count,
        uuids=uuid or (),
        placement=placement,
        parameters=pairs(param or ()),
        persistent=persistent,
    )
    session = opened(ctx)
    api = VgpuApi(session)
    if dry_run:
        preview(session, api.plan_create(type_name, **wish), as_json=as_json)
        return
    with reporting():
        outcome = api.create(
            type_name,
            **wish,
            progress=progress_lines(session),
            confirm=lambda plan: confirm(session, plan, yes=yes),
            elsewhere=lambda full: say(f"vfioctl: {full.message}; trying elsewhere"),
        )
    tell(session, outcome, as_json=as_json)


def remove(  # noqa: PLR0913 - one parameter for each option
    ctx: typer.Context,
    vgpus: Annotated[
        list[str],
        typer.Argument(
            metavar="VGPU",
            help="UUIDs (the first characters are enough), or addresses of VFs.",
            autocompletion=complete_vgpu,
        ),
    ],
    *,
    foreign: Foreign = False,
    definition: Annotated[
        bool, typer.Option("--definition", help="Also remove a definition that vfioctl did not write; needs --foreign.")
    ] = False,
    wait: Wait = None,
    force_holders: ForceHolders = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    yes: Yes = False,
) -> None:
    """Remove vGPUs that are not in use: all of them, or none.

    vGPUs that vfioctl did not create are foreign, and are removed only with --foreign. For a vGPU in use, the command
    fails and lists its users, because the kernel would wait for them without a timeout. A definition that vfioctl
    wrote is removed too. Any other definition stays, and may create the vGPU again at boot; --definition with --foreign
    removes it."""
    session = opened(ctx)
    with Board() as board:
        plan = VgpuApi(session).plan_remove(
            vgpus,
            foreign=foreign,
            definition=definition,
            force_holders=force_holders,
            wait=seconds_in(wait),
            waiting=board.show,
        )
    carry_out(session, plan, dry_run=dry_run, yes=yes, as_json=as_json)


def pairs(words: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Splits each `NAME=VALUE`. Raises BadSpec for a word of another form."""
    values = []
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise BadSpec(f"not a parameter: {word[:60]!r}", hint="write it as name=value")
        values.append((name, value))
    return tuple(values)


_RESTORE = """
  vfioctl vgpu restore --dry-run --simulate a2
  vfioctl vgpu restore --wait 60s --simulate l40s"""


def restore(
    ctx: typer.Context,
    *,
    wait: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="Retry failures for this long, such as 60s: at boot, drivers may be missing."
        ),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Create the VFs and vGPUs that were created with --persistent, usually at boot.

    VFs are created first, then vGPUs. What exists already is left unchanged. A failure does not prevent the others from
    being created; all failures are listed at the end."""
    session = opened(ctx)
    seconds = seconds_in(wait)
    api = VgpuApi(session)
    if not (dry_run or yes):
        confirm_all(session, lambda: api.restore(dry_run=True).plans)
    with reporting():
        restored = api.restore(wait=seconds, progress=progress_lines(session), dry_run=dry_run)
    tell_restored(
        session,
        restored,
        all_there="All persistent VFs and vGPUs exist.",
        failed="could not be created again",
        as_json=as_json,
    )
