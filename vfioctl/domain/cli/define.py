"""`vfioctl domain define`, `undefine`, `list` and `show`. May not add behaviour to the api."""

from typing import Annotated

import typer

from vfioctl.console.changes import carry_out
from vfioctl.console.choice import opened
from vfioctl.console.lazy import App
from vfioctl.console.options import AsJson, DryRun, Yes, completion
from vfioctl.console.output import draw, emit, emit_document, emit_file, width
from vfioctl.domain.api import DomainApi
from vfioctl.domain.cli.domain import Connect, Name, Replace
from vfioctl.session import Session

_DEFINE = """
  vfioctl domain define ml1.xml
  vfioctl domain build ml1 --gpus 1 --host hgx8 | vfioctl domain define - -c test:///default --host hgx8 --dry-run
  vfioctl domain build ml1 --gpus 1 --simulate hgx8 | vfioctl domain define - -c test:///default --simulate hgx8"""
_UNDEFINE = """
  vfioctl domain undefine ml1
  vfioctl domain undefine ml1 --dry-run --json"""
_LIST = """
  vfioctl domain list --connect test:///default
  vfioctl domain list --connect test:///default --json"""


def add_to(app: App) -> None:
    """Add the commands to `vfioctl domain`."""
    app.with_examples(_DEFINE)(define)
    app.with_examples(_UNDEFINE)(undefine)
    app.with_examples(_LIST, name="list")(list_domains)
    app.with_examples(_SHOW)(show)


def _suggest_claims(session: Session, _begun: str) -> list[tuple[str, str]]:
    from vfioctl.claims.api import ClaimsApi

    return [(claim.id, claim.owner) for claim in ClaimsApi(session).claims()]


def define(  # noqa: PLR0913 - one parameter for each option
    ctx: typer.Context,
    file: Annotated[typer.FileBinaryRead, typer.Argument(metavar="FILE", help="The XML; - for standard input.")],
    *,
    claim: Annotated[
        str,
        typer.Option(
            metavar="CLAIM",
            help="Record this claim of vm/NAME in the domain's metadata.",
            autocompletion=completion(_suggest_claims),
            show_default=False,
        ),
    ] = "",
    replace: Replace = False,
    connect: Connect = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Define a domain in libvirt, or change its definition.

    libvirt compares the document with its schema first. The definition is read again and compared, and restored if it
    differs. A domain that already has this definition is left unchanged. A domain that vfioctl did not define is
    changed only with --replace. Nothing is started, and no device is touched."""
    session = opened(ctx)
    plan = DomainApi(session).definitions.plan_define(file.read(), connect=connect, claim=claim, replace=replace)
    carry_out(session, plan, dry_run=dry_run, yes=yes, as_json=as_json)


def undefine(
    ctx: typer.Context,
    name: Name,
    *,
    foreign: Annotated[
        bool, typer.Option("--foreign", help="Also remove a domain that vfioctl did not define.")
    ] = False,
    connect: Connect = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Remove the definition of a domain that is shut off.

    Its disks, firmware variables, TPM state and claim are kept."""
    session = opened(ctx)
    plan = DomainApi(session).definitions.plan_undefine(name, connect=connect, foreign=foreign)
    carry_out(session, plan, dry_run=dry_run, yes=yes, as_json=as_json)


_SHOW = """
  vfioctl domain show test --connect test:///default
  vfioctl domain show test --connect test:///default --xml"""


def list_domains(ctx: typer.Context, *, connect: Connect = "", as_json: AsJson = False) -> None:
    """List libvirt's domains with their claims, devices, vCPUs, memory and NUMA nodes."""
    listing = DomainApi(opened(ctx)).listing(connect=connect)
    if as_json:
        emit_document(listing)
    elif listing.domains:
        from vfioctl.domain.render.domains import domains_table

        draw(domains_table(listing.domains, width=width()))
    else:
        emit(f"No domains at {listing.uri}.")


def show(
    ctx: typer.Context,
    name: Name,
    *,
    xml: Annotated[
        bool, typer.Option("--xml", help="Print its XML: the live one, or the definition if it is shut off.")
    ] = False,
    connect: Connect = "",
    as_json: AsJson = False,
) -> None:
    """Show one domain: claim, devices, memory, and the CPUs of its vCPUs."""
    shown = DomainApi(opened(ctx)).shown(name, connect=connect)
    if as_json:
        emit_document(shown)
    elif xml:
        emit_file(shown.live or shown.defined)
    else:
        from vfioctl.domain.render.domains import domain_page

        draw(domain_page(shown.domain))
