"""`vfioctl domain list` and `show`. May not add behaviour to the api."""

from typing import Annotated

import typer

from vfioctl.console.choice import opened
from vfioctl.console.lazy import Command
from vfioctl.console.options import AsJson
from vfioctl.console.output import draw, emit, emit_document, emit_file, width
from vfioctl.domain.api import DomainApi
from vfioctl.domain.cli.options import Connect, Name

_LIST = """[bold]Examples[/]
  vfioctl domain list --connect test:///default
  vfioctl domain list --connect test:///default --json"""
_SHOW = """[bold]Examples[/]
  vfioctl domain show test --connect test:///default
  vfioctl domain show test --connect test:///default --xml"""


def add_to(app: typer.Typer) -> None:
    """Add the commands to `vfioctl domain`."""
    app.command("list", cls=Command, epilog=_LIST)(list_domains)
    app.command(cls=Command, epilog=_SHOW)(show)


def list_domains(ctx: typer.Context, *, connect: Connect = "", as_json: AsJson = False) -> None:
    """List libvirt's domains with their claims, devices, vCPUs, memory and NUMA nodes."""
    domains = DomainApi(opened(ctx)).domains
    libvirt = domains.libvirt(connect)
    known = domains.known(libvirt)
    from vfioctl.domain.render.domains import domains_table, list_document

    if as_json:
        emit_document(list_document(libvirt, known), indented=True)
    elif known:
        draw(domains_table(known, width=width()))
    else:
        emit(f"No domains at {libvirt.uri}.")


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
    domain = DomainApi(opened(ctx)).domains.find(name, connect)
    from vfioctl.domain.render.domains import domain_page, show_document

    if as_json:
        emit_document(show_document(domain), indented=True)
    elif xml:
        emit_file(domain.domain.xml)
    else:
        draw(domain_page(domain))
