"""`vfioctl domain check`. May not add behaviour to the api."""

import os
import sys
from typing import Annotated

import typer

from vfioctl.console.choice import opened
from vfioctl.console.lazy import App
from vfioctl.console.options import AsJson
from vfioctl.console.output import draw, emit_document, say
from vfioctl.domain.api import DomainApi
from vfioctl.domain.cli.domain import CONNECT_VARIABLE
from vfioctl.domain.document.xml import LONGEST
from vfioctl.errors import BadDocument, BadSpec

_MOST_PARTS, _MOST_DIGITS = 3, 4


def add_to(app: App) -> None:
    """Add the command to `vfioctl domain`."""
    app.with_examples("""
  vfioctl domain build ml1 --gpus 1 --simulate hgx8 | vfioctl domain check - --simulate hgx8
  vfioctl domain build ml1 --gpus 1 --simulate hgx8 | vfioctl domain check - --no-host --libvirt 9.0 --json""")(check)


def check(
    ctx: typer.Context,
    file: Annotated[
        str, typer.Argument(metavar="FILE|NAME", help="The XML, - for standard input, or the name of a libvirt domain.")
    ],
    *,
    no_host: Annotated[
        bool, typer.Option("--no-host", help="Check the document alone, without this host's CPUs, nodes and devices.")
    ] = False,
    connect: Annotated[
        str | None,
        typer.Option(
            "--connect",
            "-c",
            metavar="URI",
            help="Also ask this libvirt: its schema, its parser, and QEMU's command line. It has the domain NAME.",
        ),
    ] = None,
    libvirt: Annotated[
        str | None,
        typer.Option(metavar="VERSION", help="Also report what this version of libvirt, such as 9.0, ignores."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check a domain's XML, and report each problem with its line and remedy.

    Finds what libvirt refuses when the domain is defined or started, and what it accepts but treats differently. An
    error means that the document must be changed; a warning means that it works, but slower or not everywhere. Reads
    the host's CPUs, memory, devices and claims, and asks libvirt only with --connect, or for a NAME: without --connect,
    that is a domain of VFIOCTL_CONNECT, else of what config.toml says, else of qemu:///system. Exits with 2 if there is
    an error."""
    api, version = DomainApi(opened(ctx)), _version(libvirt)
    text = _read(file)
    if text is None and connect is None:  # for a file, the variable does not mean that libvirt is to be asked
        connect = os.environ.get(CONNECT_VARIABLE, "")
    if connect is not None:
        connect = api.domains.uri(connect)
    text = api.xml_of(file, connect=connect or "") if text is None else text
    result = api.check(text, host=not no_host, version=version, connect=connect or "")
    if as_json:
        emit_document(result, compact=True)
        if not result.ok:
            raise typer.Exit(BadDocument.exit_code)
        return
    from vfioctl.console.words import counted
    from vfioctl.domain.render.domains import findings_page

    draw(findings_page(result))
    for reason in result.unknown:
        say(f"vfioctl: not judged: {reason}")
    if not result.ok:
        errors = sum(finding.severity == "error" for finding in result.findings)
        hint = "a line with -> says what to do"
        raise BadDocument(f"the domain would not work: {counted(errors, 'error')}", hint=hint)


def _read(file: str) -> str | bytes | None:
    """The content of a file, or of standard input; None for what is no file, and can be a domain's name."""
    try:
        if file == "-":
            return sys.stdin.buffer.read(LONGEST + 1)
        with open(file, "rb") as opened_file:
            return opened_file.read(LONGEST + 1)
    except FileNotFoundError:
        if "/" not in file and not file.endswith(".xml"):
            return None
        raise BadSpec(f"{file} does not exist", hint="name a file with the domain's XML") from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "no name of a file"
        raise BadSpec(f"{file} cannot be read: {why}") from None


def _version(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    parts = text.split(".")
    is_version = all(part.isascii() and part.isdigit() and len(part) <= _MOST_DIGITS for part in parts)
    if not is_version or len(parts) > _MOST_PARTS:
        raise BadSpec(f"--libvirt {text[:40]} is no version", hint="such as 9.0 or 10.7.0")
    return tuple(int(part) for part in parts)
