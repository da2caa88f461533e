"""`vfioctl domain`, and the options that its commands share. May not add behaviour to the api."""

from typing import Annotated

import typer

from vfioctl.console.choice import opened
from vfioctl.console.lazy import group_app
from vfioctl.domain.api import DomainApi
from vfioctl.errors import VfioctlError

app = group_app("domain")
MODULES = {
    "apply": "vfioctl.domain.cli.run",
    "build": "vfioctl.domain.cli.build",
    "check": "vfioctl.domain.cli.check",
    "diff": "vfioctl.domain.cli.compare",
    "edit": "vfioctl.domain.cli.compare",
    "define": "vfioctl.domain.cli.define",
    "undefine": "vfioctl.domain.cli.define",
    "list": "vfioctl.domain.cli.define",
    "show": "vfioctl.domain.cli.define",
    "start": "vfioctl.domain.cli.run",
    "stop": "vfioctl.domain.cli.run",
    "verify": "vfioctl.domain.cli.compare",
}
"""The modules that add the subcommands; only that of the one that is called is imported."""


@app.group_with_examples("""
  vfioctl domain build ml1 --gpus 2 --cpus 16 --memory 64GiB --simulate hgx8
  vfioctl domain build ml1 --gpus 2 --explain --simulate hgx8
  vfioctl domain build ml1 --gpus 1 --simulate hgx8 | vfioctl domain check - --simulate hgx8""")
def domain() -> None:
    """Build, check and provision libvirt domains with GPUs."""


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
    str, typer.Argument(metavar="NAME", help="Name or UUID of the domain.", autocompletion=suggest_domains)
]
