"""Options and arguments that several commands share.

Those of OPTIONS are accepted before and after the command's name. May not access a host.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import typer

from vfioctl.console.choice import chosen, opened, variable
from vfioctl.console.output import be_quiet
from vfioctl.errors import BadSpec, VfioctlError

_SHARED = "Host (this machine, if none is given) and messages"
"""The panel of the options that every command has: one line for each, so that a command's own options stay in sight."""


class LogLevel(StrEnum):
    ERROR = "error"
    WARNING = "warning"
    INFO = "info"
    DEBUG = "debug"


def _is_given(ctx: typer.Context, param: typer.CallbackParam) -> bool:
    source = ctx.get_parameter_source(param.name)
    return source is not None and source.name == "COMMANDLINE"


def remember_host(ctx: typer.Context, param: typer.CallbackParam, value: str | None) -> str | None:
    """Store an option in the choice; a later one of the same name wins. Raises BadSpec if it is empty."""
    if value is not None and _is_given(ctx, param):
        if not value:
            raise BadSpec(f"--{param.name} needs a value")
        chosen(ctx).given[param.name] = value
    return value


def remember_level(ctx: typer.Context, param: typer.CallbackParam, value: LogLevel | None) -> LogLevel | None:
    """Store --log-level, which takes precedence over --verbose."""
    if value is not None and _is_given(ctx, param):
        chosen(ctx).log_level = value
    return value


def remember_verbose(ctx: typer.Context, param: typer.CallbackParam, value: bool) -> bool:  # noqa: FBT001 - typer's form
    """Store --verbose."""
    if value and _is_given(ctx, param):
        chosen(ctx).log_level = chosen(ctx).log_level or LogLevel.INFO
    return value


def remember_quiet(ctx: typer.Context, param: typer.CallbackParam, value: bool) -> bool:  # noqa: FBT001 - typer's form
    """Write no notes from now on, until the command has ended."""
    if value and _is_given(ctx, param):
        chosen(ctx).at_end.callback(be_quiet())
    return value


def complete_host(_incomplete: str) -> list[str]:
    """Return the bundled hosts. typer filters them by the typed prefix; the shell completes files if none matches."""
    from vfioctl.kernel.recorded.bundled import bundled_hosts

    return list(bundled_hosts())


def _host_option(name: str, metavar: str, meaning: str) -> Any:
    return typer.Option(
        f"--{name}",
        metavar=metavar,
        envvar=variable(name),
        help=f"{meaning} ({variable(name)})",
        callback=remember_host,
        expose_value=False,
        show_envvar=False,
        rich_help_panel=_SHARED,
        autocompletion=complete_host if "NAME" in metavar else None,
    )


Root = Annotated[str | None, _host_option("root", "DIR", "Read a captured tree")]
Recorded = Annotated[str | None, _host_option("host", "FILE|NAME", "Read a recorded host")]
Simulated = Annotated[str | None, _host_option("simulate", "FILE|NAME", "Try it on a recorded host")]
Ledger = Annotated[str | None, _host_option("ledger", "FILE", "Use this ledger")]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose",
        "-v",
        help="Log each write to the host on stderr.",
        callback=remember_verbose,
        expose_value=False,
        rich_help_panel=_SHARED,
    ),
]
Level = Annotated[
    LogLevel | None,
    typer.Option(
        "--log-level",
        metavar="LEVEL",
        help="error, warning, info or debug (with reads).",
        callback=remember_level,
        expose_value=False,
        rich_help_panel=_SHARED,
    ),
]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet",
        "-q",
        help="Print only results and errors.",
        callback=remember_quiet,
        expose_value=False,
        rich_help_panel=_SHARED,
    ),
]

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask. Without a terminal on stdin, nothing is asked.")]


def device_argument(
    suggest: Callable[[Any, str], list[tuple[str, str]]], *, metavar: str = "DEVICE", meaning: str = ""
) -> Any:
    """Return an argument that names one or several devices. `suggest`: returns completions of a prefix, with help."""
    return typer.Argument(
        metavar=metavar,
        help=meaning or "0000:41:00.0, 41:00.0, gpu0 (as listed by inventory) or vendor:device as in 10de:2330.",
        autocompletion=completion(suggest),
    )


def completion(
    suggest: Callable[[Any, str], list[tuple[str, str]]],
) -> Callable[[typer.Context, str], list[tuple[str, str]]]:
    """Return a completion callback. `suggest`: see `device_argument`; gets the session."""

    def complete(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
        try:
            return suggest(opened(ctx), incomplete)
        except (VfioctlError, OSError):
            return []  # no completion is better than a traceback at the prompt

    return complete


WithGroup = Annotated[
    bool, typer.Option("--with-group", help="Also take devices of other cards in the same IOMMU group.")
]
Every = Annotated[bool, typer.Option("--every", help="If a DEVICE matches several devices, take all of them.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show the plan and change nothing; with --json, in the form that apply reads.")
]
Foreign = Annotated[bool, typer.Option("--foreign", help="Also remove or change what vfioctl did not create.")]
Persistent = Annotated[
    bool,
    typer.Option("--persistent", help="Create it again at every boot, by an mdevctl definition or a vfioctl file."),
]
Wait = Annotated[
    str | None,
    typer.Option("--wait", metavar="DURATION", help="Wait up to DURATION (60s, 5m) for holders to release the device."),
]
StopServices = Annotated[
    bool,
    typer.Option(
        "--stop-services",
        help="Stop services that only monitor GPUs (nvidia-persistenced, nvidia-powerd, dcgm) if they hold "
        "a device; unbind starts them again.",
    ),
]
StopService = Annotated[
    list[str] | None,
    typer.Option("--stop-service", metavar="UNIT", help="Also stop UNIT, such as gdm.service, if it holds a device."),
]
ForceHolders = Annotated[
    bool,
    typer.Option(
        "--force-holders",
        help="Continue although a process has the device open; the kernel may then wait for that process forever. "
        "Never takes a disk or a network interface in use.",
    ),
]
