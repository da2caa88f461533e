"""`vfioctl domain check`. May not add behaviour to the api."""

from typing import Annotated

import typer

from vfioctl.console.choice import opened
from vfioctl.console.lazy import Command
from vfioctl.domain.api import DomainApi


def add_to(app: typer.Typer) -> None:
    """Add the command to `vfioctl domain`."""
    app.command(cls=Command)(check)


def check(
    ctx: typer.Context,
    file: Annotated[typer.FileBinaryRead, typer.Argument(metavar="FILE", help="The XML; - for standard input.")],
) -> None:
    """Say what is wrong with a domain's XML, and the remedy."""
    DomainApi(opened(ctx)).check(file.read())
