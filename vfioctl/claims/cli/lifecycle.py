"""`vfioctl claim release`, `renew`, `transfer`, `adopt`: what is done with a claim, or with devices that are held."""

from typing import Annotated

import typer

from vfioctl.claims.api import ClaimsApi, suggest_claims
from vfioctl.claims.cli.options import Devices, DryRun, OwnerName
from vfioctl.claims.cli.output import ClaimId, print_claim, print_claims, print_problem, print_release_previews
from vfioctl.console.changes import confirm, progress_lines, reporting
from vfioctl.console.choice import opened
from vfioctl.console.lazy import Command
from vfioctl.console.options import AsJson, Wait, Yes, completion
from vfioctl.console.output import say
from vfioctl.console.waiting import Board, seconds_in
from vfioctl.errors import BadSpec, VfioctlError


def add_to(app: typer.Typer) -> None:
    """Add the commands to `vfioctl claim`."""
    app.command(cls=Command, epilog=_RELEASE)(release)
    app.command(cls=Command, epilog=_RENEW)(renew)
    app.command(cls=Command, epilog=_TRANSFER)(transfer)
    app.command(cls=Command, epilog=_ADOPT)(adopt)


_RELEASE = """[bold]Examples[/]
  vfioctl claim release CLAIM --simulate hgx8
  vfioctl claim release CLAIM --dry-run --simulate hgx8
  vfioctl claim release --stale --simulate hgx8"""
_RENEW = """[bold]Examples[/]
  vfioctl claim renew CLAIM --ttl 1h --simulate hgx8
  vfioctl claim renew CLAIM --ttl never --simulate hgx8"""
_TRANSFER = "[bold]Examples[/]\n  vfioctl claim transfer CLAIM --to vm/web2 --simulate hgx8"
_ADOPT = "[bold]Examples[/]\n  vfioctl claim adopt --owner vm/old --device gpu2 --simulate hgx8"


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

    A claim whose devices are in use is refused, and their holders are listed. Releasing a claim twice does nothing.
    """
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
                    plan = api.preview_release(claim, wait=seconds_in(wait), waiting=board.show)
                    planned.append((claim, plan))
                    continue
                made = api.release(
                    name,
                    wait=seconds_in(wait),
                    waiting=board.show,
                    progress=progress_lines(session),
                    confirm=None if yes else lambda plan: confirm(session, plan),
                )
            released.append(made.claim)
            print_problem(made)
        except VfioctlError as error:
            if not stale:
                raise
            say(f"vfioctl: claim {name}: {error.message}")
            failed = failed or error
    if dry_run:
        print_release_previews(session, planned, as_json=as_json)
    else:
        print_claims(released, as_json=as_json)
    if failed:
        raise failed


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


def transfer(
    ctx: typer.Context,
    name: ClaimId,
    *,
    to: Annotated[str, typer.Option(metavar="OWNER", help="The new owner: vm/NAME, pod/..., user/NAME.")],
    as_json: AsJson = False,
) -> None:
    """Give a claim to another owner; its devices stay as they are."""
    print_claims([ClaimsApi(opened(ctx)).transfer(name, to)], as_json=as_json)


def adopt(ctx: typer.Context, *, owner: OwnerName, device: Devices = None, as_json: AsJson = False) -> None:
    """Claim devices that an owner already uses.

    Nothing is changed. Releasing the claim changes nothing either.
    """
    if not device:
        raise BadSpec("no devices to adopt were given", hint="name them with --device")
    api = ClaimsApi(opened(ctx))
    print_claim(api, api.adopt(owner, api.devices_called(device)), as_json=as_json)
