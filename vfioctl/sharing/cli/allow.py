"""The commands allow, disallow and allowed of the group share. They may not add behaviour to the api."""

from typing import Annotated

import typer

from vfioctl.console.changes import carry_out
from vfioctl.console.choice import opened
from vfioctl.console.options import AsJson, DryRun, Yes, completion
from vfioctl.console.output import draw, emit, emit_document
from vfioctl.errors import BadSpec
from vfioctl.inventory.api import suggest_devices
from vfioctl.sharing.allowing.api import AllowApi

Cgroup = Annotated[
    str, typer.Argument(metavar="CGROUP", help="The path of a cgroup, as in /proc/PID/cgroup: /system.slice/a.service.")
]
Gpus = Annotated[
    list[str] | None,
    typer.Option(
        "--device",
        metavar="GPU",
        help="A GPU that it may open: an address, or a name such as gpu0. May be given several times.",
        autocompletion=completion(suggest_devices),
    ),
]


def allow(
    ctx: typer.Context,
    cgroup: Cgroup,
    *,
    device: Gpus = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    yes: Yes = False,
) -> None:
    """Let the processes of a cgroup open some GPUs and no others.

    All device nodes of other GPUs are refused with EPERM: those of their drivers, of DRM and of VFIO. Devices that are
    no GPU's stay as they are. Where a systemd unit owns the cgroup, DeviceAllow of the unit is set until the next boot;
    elsewhere a BPF program is attached, which lasts as long as the cgroup. Lists of cgroups above apply too.
    What a process has open already is not revoked: vfioctl share allowed shows who has."""
    if not device:
        raise BadSpec("name a GPU with --device", hint="vfioctl inventory lists them")
    session = opened(ctx)
    plan = AllowApi(session).plan_allow(cgroup, device)
    carry_out(session, plan, dry_run=dry_run, yes=yes, as_json=as_json)


def disallow(
    ctx: typer.Context, cgroup: Cgroup, *, dry_run: DryRun = False, as_json: AsJson = False, yes: Yes = False
) -> None:
    """Remove what share allow has set for a cgroup, and nothing else.

    Programs and settings of others stay. A unit gets back what it had before; if somebody has changed its settings
    since, they stay."""
    session = opened(ctx)
    plan = AllowApi(session).plan_disallow(cgroup)
    carry_out(session, plan, dry_run=dry_run, yes=yes, as_json=as_json)


def allowed(
    ctx: typer.Context,
    cgroup: Annotated[str | None, typer.Argument(metavar="[CGROUP]", help="A cgroup; without it, all.")] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Show which GPUs a cgroup may open, by which mechanism, and who has refused ones open.

    Without CGROUP, show each cgroup that share allow has restricted. Only root may ask the kernel."""
    restrictions = AllowApi(opened(ctx)).allowed(cgroup)
    if as_json:
        emit_document({"cgroups": [restriction.document for restriction in restrictions]})
    elif restrictions:
        from vfioctl.sharing.allowing.render import allowed_page

        draw(allowed_page(restrictions))
    else:
        from vfioctl.sharing.allowing.render import NOTHING

        emit(NOTHING)
