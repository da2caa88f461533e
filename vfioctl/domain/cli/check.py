"""`vfioctl domain check`. May not add behaviour to the api."""

from typing import Annotated

import typer

from vfioctl.console.choice import opened
from vfioctl.console.lazy import Command
from vfioctl.console.options import AsJson
from vfioctl.console.output import draw, emit_document, say
from vfioctl.domain.api import DomainApi
from vfioctl.errors import BadDocument, BadSpec

_MOST_PARTS, _MOST_DIGITS = 3, 4


def add_to(app: typer.Typer) -> None:
    """Add the command to `vfioctl domain`."""
    app.command(
        cls=Command,
        epilog="""[bold]Examples[/]
  vfioctl domain build ml1 --gpus 1 --simulate hgx8 | vfioctl domain check - --simulate hgx8
  vfioctl domain build ml1 --gpus 1 --simulate hgx8 | vfioctl domain check - --no-host --libvirt 9.0 --json""",
    )(check)


def check(
    ctx: typer.Context,
    file: Annotated[typer.FileBinaryRead, typer.Argument(metavar="FILE", help="The XML; - for standard input.")],
    *,
    no_host: Annotated[
        bool, typer.Option("--no-host", help="Judge the document alone: no machine's CPUs, nodes or devices.")
    ] = False,
    libvirt: Annotated[
        str | None,
        typer.Option(metavar="VERSION", help="Also tell what a libvirt of this version, such as 9.0, drops silently."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what is wrong with a domain's XML, where, why, and the remedy.

    Finds what libvirt refuses when the domain is defined or started, and what it accepts although it does not mean what
    it says. An error means that the document must change; a warning, that it works, but slower or not everywhere. Reads
    the host's CPUs, memory, devices and claims, and needs no libvirt. Exits with 2 if there is an error.
    """
    found = DomainApi(opened(ctx)).check(file.read(), host=not no_host, version=_version(libvirt))
    if as_json:
        emit_document(found)
        if not found.ok:
            raise typer.Exit(BadDocument.exit_code)
        return
    from vfioctl.domain.render.findings import counted, findings_page

    draw(findings_page(found))
    for each in found.unknown:
        say(f"vfioctl: not judged: {each}")
    if not found.ok:
        errors = sum(each.severity == "error" for each in found.findings)
        raise BadDocument(
            f"the domain would not work: {counted(errors, 'error')}", hint="a line with -> says what to do"
        )


def _version(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    parts = text.split(".")
    is_version = all(part.isascii() and part.isdigit() and len(part) <= _MOST_DIGITS for part in parts)
    if not is_version or len(parts) > _MOST_PARTS:
        raise BadSpec(f"--libvirt {text[:40]} is no version", hint="such as 9.0 or 10.7.0")
    return tuple(int(part) for part in parts)
