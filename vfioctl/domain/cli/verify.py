"""`vfioctl domain verify`. May not add behaviour to the api."""

from typing import Annotated

import typer

from vfioctl.console.choice import opened
from vfioctl.console.lazy import Command
from vfioctl.console.options import AsJson
from vfioctl.console.output import draw, emit_document
from vfioctl.domain.api import DomainApi
from vfioctl.domain.cli.options import Connect, Name
from vfioctl.errors import HostError, VerifyError, VfioctlError

_VERIFY = """[bold]Examples[/]
  vfioctl domain verify ml1
  vfioctl domain verify ml1 --no-guest --json"""


def add_to(app: typer.Typer) -> None:
    """Add the command to `vfioctl domain`."""
    app.command(cls=Command, epilog=_VERIFY)(verify)


def verify(
    ctx: typer.Context,
    name: Name,
    *,
    no_guest: Annotated[bool, typer.Option("--no-guest", help="Do not ask the guest agent.")] = False,
    connect: Connect = "",
    as_json: AsJson = False,
) -> None:
    """Compare a running domain with its document: CPUs, memory, devices, and what its guest sees.

    Reads QEMU's process: the CPUs of each vCPU, the emulator and each I/O thread; the NUMA nodes and page sizes of the
    memory; the devices on the command line. Compares the live document with the definition that the next start uses.
    Asks the guest agent, if there is one, for each GPU's NUMA node and link. Exits with 6 if something differs, and
    with 3 if the domain does not run or neither its CPUs nor its memory can be read.
    """
    result = DomainApi(opened(ctx)).verify(name, connect=connect, guest=not no_guest)
    different = [fact for fact in result.facts if fact.state == "differs"]
    failure: VfioctlError | None = None
    if different:
        number = f"{len(different)} value{'s' if different[1:] else ''}"
        failure = VerifyError(f"{result.name} does not run as its document says, in {number}")
    elif result.state != "ok":
        failure = HostError(
            f"{result.name} cannot be verified: neither its CPUs nor its memory can be seen", hint="run it as root"
        )
    if as_json:
        emit_document(result, indented=True)
        if failure:
            raise typer.Exit(failure.exit_code)
        return
    from vfioctl.domain.render.running import verification_page

    draw(verification_page(result))
    if failure:
        raise failure
