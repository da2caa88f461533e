"""What the commands that ask libvirt share: the option that names a libvirt, and the argument that names a domain."""

from typing import Annotated

import typer

from vfioctl.console.choice import opened
from vfioctl.domain.api import DomainApi
from vfioctl.errors import VfioctlError

CONNECT_VARIABLE = "VFIOCTL_CONNECT"

Connect = Annotated[
    str,
    typer.Option(
        "--connect",
        "-c",
        metavar="URI",
        envvar=CONNECT_VARIABLE,
        show_envvar=False,
        show_default=False,
        help="The libvirt that has the domains, instead of qemu:///system or the one of config.toml.",
    ),
]


DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and change nothing.")]


def suggest_domains(ctx: typer.Context, begun: str) -> list[tuple[str, str]]:
    """Return the domains' names, each with its state."""
    try:
        domains = DomainApi(opened(ctx)).domains.libvirt(ctx.params.get("connect") or "").domains
    except (VfioctlError, OSError):
        return []  # no completion is better than a traceback at the prompt
    return [(each.name, each.state) for each in domains if each.name.startswith(begun)]


Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="The domain's name or UUID.", autocompletion=suggest_domains),
]
