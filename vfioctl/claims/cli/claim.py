"""`vfioctl claim`: takes devices for owners, and gives them back. May not add behaviour to the api."""

import json
from typing import Annotated

import typer

from vfioctl.claims.api import ClaimsApi
from vfioctl.claims.cli import lifecycle
from vfioctl.claims.cli.options import DryRun, Key, OwnerName, Wish, key_in, wish_options
from vfioctl.claims.cli.output import ClaimId, print_claim, print_preview
from vfioctl.console.changes import confirm, progress_lines, reporting
from vfioctl.console.choice import opened
from vfioctl.console.lazy import Command, group_app
from vfioctl.console.options import AsJson, Yes
from vfioctl.console.output import draw, emit, emit_document, emit_json_text, emit_long_json, width

app = group_app("claim")


@app.callback(
    epilog="""[bold]Examples[/]
  vfioctl claim create --owner vm/web1 --gpus 1 --simulate hgx8
  vfioctl claim list --simulate hgx8
  vfioctl place --gpus 2 --numa same --simulate hgx8""",
)
def claim() -> None:
    """Claim GPUs for a VM, a container or a user, and release them.

    A claim records who holds which devices, CPUs and hugepages of this host. No other claim gets them, and no other
    command changes them.
    """


@app.command(
    cls=Command,
    epilog="""[bold]Examples[/]
  vfioctl claim create --owner vm/web1 --gpus 1 --simulate hgx8
  vfioctl claim create --owner vm/db1 --device gpu3 --cpus 16 --key db1 --simulate hgx8
  vfioctl claim create --owner vm/db1 --gpus 2 --dry-run --simulate hgx8
  vfioctl claim create --owner vm/vdi1 --vfs 2 --of MI300X --simulate mi300x-vf
  vfioctl claim create --owner pod/ml/train-0/main --gpus 2 --numa same --ttl 2h --json --simulate hgx8""",
)
@wish_options()
def create(  # noqa: PLR0913 - one parameter for each option
    ctx: typer.Context,
    *,
    owner: OwnerName,
    wish: Wish,
    key: Key = None,
    explain: Annotated[bool, typer.Option("--explain", help="Also print the reasons for the selection.")] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    yes: Yes = False,
) -> None:
    """Select devices for an owner, prepare them, and reserve them.

    The claim is recorded before anything is changed. GPUs are bound to VFIO, vGPUs are created, and both are verified;
    if that fails, everything is rolled back. The output lists the device files that a guest opens.
    """
    wish.refuse_unclear()
    name = key_in(key)
    session = opened(ctx)
    api = ClaimsApi(session)
    request = wish.asked(api, owner)
    if dry_run:
        print_preview(session, api.preview_create(request, name), as_json=as_json)
        return
    with reporting():
        made = api.create(
            request,
            key=name,
            progress=progress_lines(session),
            confirm=None if yes else lambda plan: confirm(session, plan),
        )
    print_claim(api, made, as_json=as_json, explain=explain)


@app.command(
    "list",
    cls=Command,
    epilog="""[bold]Examples[/]
  vfioctl claim list --simulate hgx8
  vfioctl claim list --all --json --simulate hgx8""",
)
def list_claims(
    ctx: typer.Context,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Also list claims that have ended.")] = False,
    owner: Annotated[str | None, typer.Option(metavar="OWNER", help="List only the claims of this owner.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the claims, the newest first. Times are in UTC."""
    api = ClaimsApi(opened(ctx))
    claims = api.claims(live_only=not everything)
    shown = tuple(claim for claim in claims if owner in (None, claim.owner))
    stale = api.stale(shown)
    if as_json:
        from vfioctl.claims.model.documents import claims_text, unverified

        emit_long_json(claims_text(shown, {**unverified(shown, api.boot_id), **stale}))
    elif shown:
        from vfioctl.claims.render.claims import claims_table

        draw(claims_table(shown, stale, width=width(), boot_id=api.boot_id))
        if stale:
            emit("")
            emit("vfioctl reconcile says what to do about stale claims.")
    else:
        emit("No claims." if everything else "No claims now; claim list --all lists those that have ended.")


@app.command(
    cls=Command,
    epilog="""[bold]Examples[/]
  vfioctl claim create --owner vm/web1 --gpus 1 --key web1 --simulate hgx8
  vfioctl claim show CLAIM --json --simulate hgx8""",
)
def show(ctx: typer.Context, name: ClaimId, *, as_json: AsJson = False) -> None:
    """Show one claim: its devices, their device files, and its events."""
    from vfioctl.claims.model.documents import unverified, why_stale

    api = ClaimsApi(opened(ctx))
    claim = api.claim(name)
    stale = why_stale(claim, api.stale([claim]))
    unusable = stale or why_stale(claim, unverified([claim], api.boot_id))
    if as_json:
        from vfioctl.claims.model.documents import claim_document, event_document

        document = claim_document(claim, api.nodes(claim), stale=unusable) | {"request": api.request(claim)}
        emit_document(document | {"events": [event_document(event) for event in api.events(claim)]})
        return
    from vfioctl.claims.render.claims import claim_page

    page = claim_page(
        claim, api.nodes(claim), api.events(claim), stale=stale, boot_id=api.boot_id, request=api.request(claim)
    )
    draw(page)


@app.command(cls=Command, epilog="[bold]Examples[/]\n  vfioctl claim watch --json")
def watch(ctx: typer.Context, *, as_json: AsJson = False) -> None:
    """Print each change of a claim as it happens, one on a line, until interrupted."""
    api = ClaimsApi(opened(ctx))
    for event in api.watch():
        devices = [device.subject for device in api.claim(event.claim).devices if device.asked]
        if as_json:
            from vfioctl.claims.model.documents import event_document

            emit_json_text(json.dumps(event_document(event) | {"devices": devices}))
        else:
            from vfioctl.claims.render.claims import event_line

            emit(event_line(event, devices))


lifecycle.add_to(app)
