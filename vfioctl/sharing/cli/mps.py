"""`vfioctl mps`: NVIDIA's Multi-Process Service. May not add behaviour to the api."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from vfioctl.console.changes import carry_out
from vfioctl.console.choice import on_this_host, opened
from vfioctl.console.lazy import group_app
from vfioctl.console.options import AsJson, DryRun, Yes, completion, device_argument
from vfioctl.console.output import draw, emit, emit_document, emit_file, width
from vfioctl.errors import BadSpec, Drift
from vfioctl.inventory.api import suggest_devices
from vfioctl.sharing.mps.api import MpsApi, suggest_daemons

if TYPE_CHECKING:
    from vfioctl.sharing.mps.status import MpsStatus

app = group_app("mps")
Threads = Annotated[
    int | None,
    typer.Option("--threads", metavar="PERCENT", help="Percent of the GPU's threads that a client may use, at most."),
]
Memory = Annotated[
    str | None,
    typer.Option("--memory", metavar="SIZE", help="Memory of the GPU that a client may use, at most: 8GiB, 2048MiB."),
]
Gpu = Annotated[str, device_argument(suggest_devices, metavar="GPU")]
Daemons = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="GPU...",
        help="Addresses, or names such as gpu0. Without one: all that have a daemon.",
        autocompletion=completion(suggest_daemons),
    ),
]


@app.group_with_examples("""
  vfioctl mps start gpu0 --threads 40 --memory 8GiB --dry-run --simulate hgx8
  vfioctl mps status --simulate hgx8""")
def mps() -> None:
    """Share a GPU between processes by NVIDIA's MPS, with limits for each.

    One control daemon serves one GPU. Its limits are those of the largest share; clients of smaller shares are started
    with lower ones, which vfioctl mps env shows. Never together with MIG."""


@app.with_examples("""
  vfioctl mps start gpu0 --threads 40 --memory 8GiB --dry-run --simulate hgx8
  vfioctl mps start gpu0 --yes --simulate hgx8""")
def start(  # noqa: PLR0913 - one parameter for each option
    ctx: typer.Context,
    gpu: Gpu,
    *,
    claim: Annotated[
        str, typer.Option("--claim", metavar="CLAIM", help="Start it for this claim only, which may have all of GPU.")
    ] = "",
    threads: Threads = None,
    memory: Memory = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    yes: Yes = False,
) -> None:
    """Start an MPS daemon for a GPU.

    Sets the compute mode Exclusive_Process first, so that only the MPS server uses the GPU; stop sets it back. The
    daemon is the unit vfioctl-mps@.service. Refused for a GPU in MIG mode, one that is bound for guests, and one that a
    claim has as a whole."""
    session = opened(ctx)
    plan = MpsApi(session).plan_start(gpu, claim=claim, threads=threads, memory=_bytes(memory))
    carry_out(session, plan, dry_run=dry_run, yes=yes, as_json=as_json)


@app.with_examples("""
  vfioctl mps stop --dry-run --simulate hgx8""")
def stop(
    ctx: typer.Context,
    gpus: Daemons = None,
    *,
    force: Annotated[bool, typer.Option("--force", help="Stop it although clients use it: they lose the GPU.")] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    yes: Yes = False,
) -> None:
    """Stop MPS daemons, and set the compute modes back.

    Refused while a daemon has clients, or does not say whether it has. Where somebody else has changed the compute mode
    meanwhile, it stays."""
    session = opened(ctx)
    plan = MpsApi(session).plan_stop(gpus or (), force=force)
    carry_out(session, plan, dry_run=dry_run, yes=yes, as_json=as_json)


@app.with_examples("""
  vfioctl mps apply --simulate hgx8
  vfioctl mps apply --dry-run --json --simulate hgx8""")
def apply(  # noqa: PLR0913 - one for each option
    ctx: typer.Context,
    gpus: Daemons = None,
    *,
    threads: Threads = None,
    memory: Memory = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also start a daemon again that does not answer: its clients lose the GPU.")
    ] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    yes: Yes = False,
) -> None:
    """Correct MPS daemons: limits, compute modes, and daemons that have died.

    The limits are those given here, else those of the ledger's shares, else those of the start. Running servers are
    told, too; a client that runs keeps what it has got. A daemon that does not answer is not started again without
    --force. Of all, those that cannot be corrected are left alone; it exits with 4 then."""
    session = opened(ctx)
    plan = MpsApi(session).plan_apply(gpus or (), threads=threads, memory=_bytes(memory), force=force)
    carry_out(session, plan, dry_run=dry_run, yes=yes, as_json=as_json)
    if plan.notes and as_json:
        raise typer.Exit(Drift.exit_code)
    if plan.notes:
        raise Drift("not all MPS daemons were corrected", hint="; ".join(plan.notes), next_command="vfioctl mps status")


@app.with_examples("""
  vfioctl mps status --simulate hgx8
  vfioctl mps status --json --simulate hgx8 | jq '.daemons[].state'""")
def status(ctx: typer.Context, gpus: Daemons = None, *, as_json: AsJson = False) -> None:
    """Show MPS daemons, their servers and clients, and what differs from what they were told.

    Limits are those that a daemon reports. A client's claim is known by its environment, which it was started with.
    Exits with 4 if a daemon has died, differs from what it was told or from the ledger, or is not known; and if no
    daemon serves a share that MPS is to enforce."""
    api = MpsApi(opened(ctx))
    found = api.status(gpus or ())
    if as_json:
        emit_document(_document(api, found))
        if found.differences or found.unknown:
            raise typer.Exit(Drift.exit_code)
        return
    from vfioctl.sharing.mps.render import NO_DAEMON, status_page

    if not (found.daemons or found.differences or found.unknown):
        emit(NO_DAEMON)
        return
    draw(status_page(found, on_this_host, width=width()))
    if found.differences:
        many = "1 difference" if len(found.differences) == 1 else f"{len(found.differences)} differences"
        hint = "a line that begins with -> removes one"
        raise Drift(f"{many} between MPS and what it was told", hint=hint)
    if found.unknown:
        raise Drift("not everything about MPS is known", hint="the page says why")


@app.with_examples("""
  vfioctl mps env 1a2b3c4d --gpu gpu0 --threads 40 --memory 8GiB --simulate hgx8
  vfioctl mps env 1a2b3c4d --gpu gpu0 --threads 40 --json --simulate hgx8 | jq .containerEdits""")
def env(
    ctx: typer.Context,
    claim: Annotated[str, typer.Argument(metavar="CLAIM", help="The id of a claim.")],
    *,
    gpu: Annotated[
        str | None, typer.Option("--gpu", metavar="GPU", help="For a share that is not in the ledger.")
    ] = None,
    threads: Threads = None,
    memory: Memory = None,
    priority: Annotated[
        int | None, typer.Option("--priority", metavar="0|1", help="0: normal, 1: below normal. Default: the server's.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a client with a claim's share must be started with: environment and mounts.

    With --json also as the containerEdits of a CDI file. A client can lower its limits, and never raise them above the
    daemon's; one that drops this environment gets the daemon's."""
    api = MpsApi(opened(ctx))
    if gpu is None and (threads, memory) != (None, None):
        raise BadSpec("--threads and --memory need --gpu", hint="without --gpu, the ledger has the claim's share")
    if gpu is not None and threads is None:
        raise BadSpec("--gpu needs --threads", hint="give the percentage of the share")
    share = (
        api.share(claim)
        if gpu is None or threads is None
        else api.made_up_share(claim, gpu, threads=threads, memory=_bytes(memory) or 0)
    )
    edits = api.edits(share, priority=priority)
    if as_json:
        emit_document({**asdict(share), **asdict(edits), "containerEdits": edits.cdi})
        return
    from vfioctl.sharing.mps.render import edits_page

    draw(edits_page(edits))


@app.with_examples("""
  vfioctl mps config gpu0 --simulate hgx8""")
def config(ctx: typer.Context, gpu: Gpu, *, as_json: AsJson = False) -> None:
    """Print the configuration of MPS v3 for the shares of a GPU, as TOML.

    MPS v3 comes with driver 615 (nvidia-cuda-mps-control -d -p 3 -a FILE): a server with limits of its own for each
    claim, which its clients cannot drop. vfioctl itself starts daemons with version 2, which every driver has."""
    text = MpsApi(opened(ctx)).config(gpu)
    if as_json:
        emit_document({"config": text})
    else:
        emit_file(text.rstrip("\n"))


def _bytes(size: str | None) -> int | None:
    from vfioctl.units import parse_size

    return None if size is None else parse_size(size)


def _document(api: MpsApi, found: "MpsStatus") -> dict[str, object]:
    from vfioctl.sharing.mps.status import status_document

    return status_document(found, api.known_protocol(), api.edits, on_this_host)
