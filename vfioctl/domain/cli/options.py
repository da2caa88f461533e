"""Options and arguments that the commands of `vfioctl domain` share: which libvirt, which domain."""

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
        help="URI of libvirt, instead of qemu:///system or that of config.toml.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and change nothing.")]
Replace = Annotated[bool, typer.Option("--replace", help="Also change a domain that vfioctl did not define.")]


def suggest_domains(ctx: typer.Context, begun: str) -> list[tuple[str, str]]:
    """Return the domains' names, each with its state."""
    try:
        domains = DomainApi(opened(ctx)).domains.libvirt(ctx.params.get("connect") or "").domains
    except (VfioctlError, OSError):
        return []  # no completion is better than a traceback at the prompt
    return [(domain.name, domain.state) for domain in domains if domain.name.startswith(begun)]


Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Name or UUID of the domain.", autocompletion=suggest_domains),
]
