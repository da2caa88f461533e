"""--root, --host, --simulate and --ledger, understood before and after the command's name. May not look at a host."""

from typing import Annotated, Any

import typer

from vfioctl.console.choice import chosen, variable
from vfioctl.errors import BadSpec

PANEL = "Which host (this machine, unless one of these is given)"


def remember(ctx: typer.Context, param: typer.CallbackParam, value: str | None) -> str | None:
    """Notes one option; a later one of the same name wins, as on any command line."""
    source = ctx.get_parameter_source(param.name)
    if value is not None and source is not None and source.name == "COMMANDLINE":
        if not value:
            raise BadSpec(f"--{param.name} needs a value")
        chosen(ctx).given[param.name] = value
    return value


def complete_host(_incomplete: str) -> list[str]:
    """The bundled hosts; typer keeps those that begin like the word, and shells offer files when none does."""
    from vfioctl.kernel.recorded.bundled import bundled_hosts

    return list(bundled_hosts())


def _option(name: str, metavar: str, meaning: str) -> Any:
    return typer.Option(
        f"--{name}",
        metavar=metavar,
        envvar=variable(name),
        help=meaning,
        callback=remember,
        expose_value=False,
        rich_help_panel=PANEL,
        autocompletion=complete_host if "NAME" in metavar else None,
    )


Root = Annotated[str | None, _option("root", "DIR", "A captured sys/ proc/ dev/ tree, read-only.")]
Recorded = Annotated[
    str | None, _option("host", "FILE|NAME", "A recorded host, read-only: a .host file or a bundled name.")
]
Simulated = Annotated[
    str | None, _option("simulate", "FILE|NAME", "A recorded host that reacts to changes; they stay in its file.")
]
Ledger = Annotated[str | None, _option("ledger", "FILE", "Another ledger than the host's own.")]
