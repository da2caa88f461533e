"""Options and arguments that several commands share. May not access a host."""

import os
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from vfioctl.console.choice import Choice, chosen, opened, variable
from vfioctl.console.output import be_quiet
from vfioctl.errors import BadSpec, VfioctlError

_SHARED = "Host (this machine, if none is given) and messages"
"""The panel of the options that every command has: one line for each, so that a command's own options stay in sight."""

Decorator = Callable[[Callable[..., None]], Callable[..., None]]


class LogLevel(StrEnum):
    ERROR = "error"
    WARNING = "warning"
    INFO = "info"
    DEBUG = "debug"


def _stored(store: Callable[[Choice, str, Any], None]) -> Callable[[typer.Context, typer.CallbackParam, Any], Any]:
    def callback(ctx: typer.Context, param: typer.CallbackParam, value: Any) -> Any:
        source = ctx.get_parameter_source(param.name)
        if value not in (None, False) and source is not None and source.name == "COMMANDLINE":
            store(chosen(ctx), param.name, value)
        return value

    return callback


def _store_host(choice: Choice, name: str, value: str) -> None:
    if not value:
        raise BadSpec(f"--{name} needs a value")
    choice.given[name] = value  # a later one of the same name wins


def _store_level(choice: Choice, _name: str, level: LogLevel) -> None:
    choice.log_level = level


def _store_verbose(choice: Choice, _name: str, _value: object) -> None:
    choice.log_level = choice.log_level or LogLevel.INFO  # --log-level takes precedence


def _store_quiet(choice: Choice, _name: str, _value: object) -> None:
    choice.at_end.callback(be_quiet())


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
        callback=_stored(_store_host),
        expose_value=False,
        show_envvar=False,
        rich_help_panel=_SHARED,
        autocompletion=complete_host if "NAME" in metavar else None,
    )


def _message_option(
    store: Callable[[Choice, str, Any], None], *names: str, meaning: str, metavar: str | None = None
) -> Any:
    return typer.Option(
        *names, metavar=metavar, help=meaning, callback=_stored(store), expose_value=False, rich_help_panel=_SHARED
    )


Root = Annotated[str | None, _host_option("root", "DIR", "Read a captured tree")]
Recorded = Annotated[str | None, _host_option("host", "FILE|NAME", "Read a recorded host")]
Simulated = Annotated[str | None, _host_option("simulate", "FILE|NAME", "Try it on a recorded host")]
Ledger = Annotated[str | None, _host_option("ledger", "FILE", "Use this ledger")]
Verbose = Annotated[
    bool, _message_option(_store_verbose, "--verbose", "-v", meaning="Log each write to the host on stderr.")
]
Level = Annotated[
    LogLevel | None,
    _message_option(
        _store_level, "--log-level", metavar="LEVEL", meaning="error, warning, info or debug (with reads)."
    ),
]
Quiet = Annotated[bool, _message_option(_store_quiet, "--quiet", "-q", meaning="Print only results and errors.")]

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

ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="The configuration, in place of /etc/vfioctl/config.toml."),
]


def use_config(config: Path | None) -> None:
    """Use another configuration, in this process and those that it starts. Raises BadSpec."""
    if config is not None:
        if not config.is_file():
            raise BadSpec(f"--config {config}: there is no such file")
        os.environ["VFIOCTL_CONFIG"] = str(config.absolute())


def with_options(name: str, options: Sequence[Parameter], make: Callable[[Mapping[str, Any]], object]) -> Decorator:
    """Give a command options in the place of its parameter `name`, which gets what `make` makes of their values."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def called(*args: Any, **values: Any) -> None:
            made = make({option.name: values.pop(option.name) for option in options})
            command(*args, **{name: made}, **values)

        own = signature(command)
        parameters = [new for old in own.parameters.values() for new in (options if old.name == name else [old])]
        called.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return called

    return decorate
