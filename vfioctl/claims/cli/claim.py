"""`vfioctl claim`: takes devices for owners, and gives them back. May not add behaviour to the api."""

import json
from typing import Annotated

import typer

from vfioctl.claims.api import ClaimsApi, suggest_claims, suggest_owners
from vfioctl.claims.cli.options import AccessOf, Devices, DryRun, Key, OwnerName, Wish, key_in, wish_options
from vfioctl.claims.cli.output import ClaimId, print_claim, print_claims, print_preview, print_problem, print_releases
from vfioctl.claims.model.access import access_in
from vfioctl.claims.model.claim import claim_document, claims_text, unverified, why_stale
from vfioctl.console.changes import asks, confirm, progress_lines, reporting
from vfioctl.console.choice import opened
from vfioctl.console.lazy import group_app
from vfioctl.console.options import AsJson, Wait, Yes, completion
from vfioctl.console.output import draw, emit, emit_document, emit_json_text, emit_long_json, say, settle, width
from vfioctl.console.waiting import Board, seconds_in
from vfioctl.errors import BadSpec, VfioctlError
from vfioctl.inventory.model.values import PciAddress

app = group_app("claim")


@app.group_with_examples("""
  vfioctl claim create --owner vm/web1 --gpus 1 --simulate hgx8
  vfioctl claim list --simulate hgx8
  vfioctl place --gpus 2 --numa same --simulate hgx8""")
def claim() -> None:
    """Claim GPUs for a VM, a container or a user, and release them.

    A claim records who holds which devices, CPUs and hugepages of this host. No other claim gets them, and no other
    command changes them."""


@app.with_examples("""
  vfioctl claim create --owner vm/web1 --gpus 1 --simulate hgx8
  vfioctl claim create --owner vm/db1 --device gpu3 --cpus 16 --key db1 --simulate hgx8
  vfioctl claim create --owner vm/db1 --gpus 2 --dry-run --simulate hgx8
  vfioctl claim create --owner vm/vdi1 --vfs 2 --of MI300X --simulate mi300x-vf
  vfioctl claim create --owner pod/ml/web-0/main --cores 40 --gpu-memory 8GiB --simulate hgx8
  vfioctl claim create --owner pod/ml/train-0/main --gpus 2 --numa same --ttl 2h --json --simulate hgx8""")
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

    With --cores or --gpu-memory, GPUs stay with their host driver, for containers: the claim has a share of one GPU, or
    whole ones, and nobody gets these GPUs for guests meanwhile. vfioctl share plan says what enforces a share."""
    wish.refuse_unclear()
    name = key_in(key)
    session = opened(ctx)
    api = ClaimsApi(session)
    request = wish.asked(api, owner)
    if dry_run:
        print_preview(session, api.preview_create(request, name), request.owner, as_json=as_json)
        return
    with reporting():
        made = api.create(
            request,
            key=name,
            progress=progress_lines(session),
            confirm=(lambda plan: confirm(session, plan)) if asks(yes=yes) else None,
        )
    print_claim(api, made, as_json=as_json, explain=explain)


@app.with_examples(
    """
  vfioctl claim list --simulate hgx8
  vfioctl claim list --all --json --simulate hgx8""",
    name="list",
)
def list_claims(
    ctx: typer.Context,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Also list claims that have ended.")] = False,
    owner: Annotated[
        str | None,
        typer.Option(
            metavar="OWNER", help="List only the claims of this owner.", autocompletion=completion(suggest_owners)
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the claims, the newest first. Times are in UTC."""
    api = ClaimsApi(opened(ctx))
    claims = api.claims(live_only=not everything)
    shown = tuple(claim for claim in claims if owner in (None, claim.owner))
    stale = api.stale(shown)
    if as_json:
        emit_long_json(claims_text(shown, {**unverified(shown, api.boot_id), **stale}))
    elif shown:
        from vfioctl.claims.render.claims import claims_table

        draw(claims_table(shown, stale, width=width(), boot_id=api.boot_id))
        if stale:
            emit("")
            emit("vfioctl reconcile says what to do about stale claims.")
    else:
        emit("No claims." if everything else "No claims now; claim list --all lists those that have ended.")


@app.with_examples("""
  vfioctl claim create --owner vm/web1 --gpus 1 --key web1 --simulate hgx8
  vfioctl claim show CLAIM --json --simulate hgx8""")
def show(ctx: typer.Context, name: ClaimId, *, as_json: AsJson = False) -> None:
    """Show one claim: its devices, their device files, and its events."""
    session = opened(ctx)
    api = ClaimsApi(session)
    claim = api.claim(name)
    stale = why_stale(claim, api.stale([claim]))
    unusable = stale or why_stale(claim, unverified([claim], api.boot_id))
    nodes, request, events = api.nodes(claim), api.request(claim), api.events(claim)
    if session.reads_published:
        say("vfioctl: only root may read the request and the events of a claim")
        if api.hides_labels([claim]):
            say("vfioctl: only root and the group vfioctl may read the labels and the command of a claim")
    if as_json:
        document = claim_document(claim, nodes, stale=unusable) | {"request": request}
        emit_document(document | {"events": [event._asdict() for event in events]})
        return
    from vfioctl.claims.render.claims import claim_page

    draw(claim_page(claim, nodes, events, stale=stale, boot_id=api.boot_id, request=request))


@app.with_examples("""
  vfioctl claim watch --json""")
def watch(ctx: typer.Context, *, as_json: AsJson = False) -> None:
    """Print each change of a claim as it happens, one on a line, until interrupted."""
    api = ClaimsApi(opened(ctx))
    settle()  # it is idle until something happens
    for event in api.watch():
        claim = api.claim(event.claim)
        devices = [device.subject for device in claim.devices if device.asked]
        devices += [PciAddress(share.address) for share in claim.shares]
        if as_json:
            emit_json_text(json.dumps(event._asdict() | {"devices": devices}))
        else:
            from vfioctl.claims.render.claims import event_line

            emit(event_line(event, devices))


@app.with_examples("""
  vfioctl claim release CLAIM --simulate hgx8
  vfioctl claim release CLAIM --dry-run --simulate hgx8
  vfioctl claim release --stale --simulate hgx8""")
def release(
    ctx: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CLAIM]...",
            help="Ids of claims, or their beginnings (4 characters or more).",
            autocompletion=completion(suggest_claims),
        ),
    ] = None,
    *,
    stale: Annotated[
        bool, typer.Option("--stale", help="Release the claims that are stale, as claim list shows them.")
    ] = False,
    wait: Wait = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    yes: Yes = False,
) -> None:
    """Restore the devices of claims to their previous state, and release them.

    A claim whose devices are in use is refused, and their holders are listed. Releasing a claim twice does nothing."""
    if bool(names) == stale:
        raise BadSpec("no claims to release were given", hint="name them, or give --stale, not both")
    session = opened(ctx)
    api = ClaimsApi(session)
    released, planned, failed = [], [], None
    named = [api.claim(name).id for name in names or ()]  # all are known before one is released
    for name in dict.fromkeys(named) if names else api.stale(api.claims()):
        try:
            with reporting(), Board() as board:
                if dry_run:
                    claim = api.claim(name)
                    planned.append((claim, api.preview_release(claim, wait=seconds_in(wait), waiting=board.show)))
                    continue
                made = api.release(
                    name,
                    wait=seconds_in(wait),
                    waiting=board.show,
                    progress=progress_lines(session),
                    confirm=lambda plan: confirm(session, plan, yes=yes),
                )
            released.append(made.claim)
            print_problem(made)
        except VfioctlError as error:
            if not stale:
                raise
            say(f"vfioctl: claim {name}: {error.message}")
            failed = failed or error
    if dry_run:
        print_releases(session, planned, as_json=as_json)
    else:
        print_claims(released, as_json=as_json)
    if failed:
        raise failed


@app.with_examples("""
  vfioctl claim renew CLAIM --ttl 1h --simulate hgx8
  vfioctl claim renew CLAIM --ttl never --simulate hgx8""")
def renew(
    ctx: typer.Context,
    name: ClaimId,
    *,
    ttl: Annotated[
        str, typer.Option(metavar="DURATION", help="From now on, such as 10m or 2h; never: it does not expire.")
    ],
    as_json: AsJson = False,
) -> None:
    """Set when a claim expires."""
    seconds = None if ttl == "never" else seconds_in(ttl)
    print_claims([ClaimsApi(opened(ctx)).renew(name, seconds)], as_json=as_json)


@app.with_examples("""
  vfioctl claim transfer CLAIM --to vm/web2 --simulate hgx8""")
def transfer(
    ctx: typer.Context,
    name: ClaimId,
    *,
    to: Annotated[
        str,
        typer.Option(
            metavar="OWNER",
            help="The new owner: vm/NAME, pod/..., user/NAME.",
            autocompletion=completion(suggest_owners),
        ),
    ],
    access: AccessOf = None,
    as_json: AsJson = False,
) -> None:
    """Give a claim to another owner; its devices stay as they are."""
    made = ClaimsApi(opened(ctx)).transfer(name, to, access_in(access) if access is not None else None)
    print_claims([made.claim], as_json=as_json)
    print_problem(made)


@app.with_examples("""
  vfioctl claim adopt --owner vm/old --device gpu2 --simulate hgx8""")
def adopt(ctx: typer.Context, *, owner: OwnerName, device: Devices = None, as_json: AsJson = False) -> None:
    """Claim devices that an owner already uses.

    Nothing is changed. Releasing the claim changes nothing either."""
    if not device:
        raise BadSpec("no devices to adopt were given", hint="name them with --device")
    api = ClaimsApi(opened(ctx))
    print_claim(api, api.adopt(owner, api.devices_called(device)), as_json=as_json)
