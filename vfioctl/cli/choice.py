"""Which host a command is about: --root, --host, --simulate, --ledger and their environment variables.

The options are understood before and after the command's name. May not look at a host.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from vfioctl.errors import BadSpec

if TYPE_CHECKING:
    from vfioctl.host import Host

PANEL = "Which host (this machine, unless one of these is given)"
_EXCLUSIVE = ("root", "host", "simulate")
OPTIONS = (*_EXCLUSIVE, "ledger")
_READ_ONLY = ("root", "host")


class Choice:
    """What was given on the command line, wherever it stood; the environment counts only where that is silent."""

    def __init__(self) -> None:
        self.given: dict[str, str] = {}

    def open(self) -> Host:
        """The host. Raises BadSpec when several were asked for, and whatever opening it raises."""
        from vfioctl.host import Host as Front  # noqa: PLC0415 - brings pydantic

        option, value = self._one()
        ledger = self._ledger(option)
        if option == "root":
            return Front.at(Path(value))
        if option == "host":
            return Front.recorded(value)
        return Front.simulated(value, ledger=ledger) if option == "simulate" else Front.live(ledger=ledger)

    def arguments(self) -> str:
        """The options that lead to the same host again, for a command to run next."""
        option, value = self._one()
        return f" --{option} {value}" if option and option in self.given else ""

    def _one(self) -> tuple[str, str]:
        given = {f"--{name}": self.given[name] for name in _EXCLUSIVE if name in self.given}
        asked = given or {_variable(name): os.environ[_variable(name)] for name in _EXCLUSIVE if _in_environment(name)}
        if len(asked) > 1:
            raise BadSpec(f"{' and '.join(asked)} exclude each other", hint="give one of them")
        for name, value in asked.items():
            return name.removeprefix("--").removeprefix("VFIOCTL_").lower(), value
        return "", ""

    def _ledger(self, option: str) -> Path | None:
        if option in _READ_ONLY:
            if "ledger" in self.given:
                raise BadSpec(f"--ledger has no use with --{option}", hint="a host that is only read keeps no ledger")
            return None
        text = self.given.get("ledger") or os.environ.get(_variable("ledger"))
        return Path(text) if text else None


def _variable(name: str) -> str:
    return f"VFIOCTL_{name.upper()}"


def _in_environment(name: str) -> bool:
    return bool(os.environ.get(_variable(name)))


def remember(ctx: typer.Context, param: typer.CallbackParam, value: str | None) -> str | None:
    """Notes one option; a later one of the same name wins, as on any command line."""
    source = ctx.get_parameter_source(param.name)
    choice = ctx.find_root().ensure_object(Choice)
    if value is not None and source is not None and source.name == "COMMANDLINE":
        if not value:
            raise BadSpec(f"--{param.name} needs a value")
        choice.given[param.name] = value
    return value


def chosen(ctx: typer.Context) -> Choice:
    """The choice that belongs to a command's context."""
    return cast("Choice", ctx.find_root().ensure_object(Choice))


def _option(name: str, metavar: str, meaning: str) -> object:
    return typer.Option(
        f"--{name}", metavar=metavar, envvar=_variable(name), help=meaning,
        callback=remember, expose_value=False, rich_help_panel=PANEL,
    )


Root = Annotated[
    str | None, _option("root", "DIR", "A captured sys/ proc/ dev/ tree, read-only.")
]
Recorded = Annotated[
    str | None, _option("host", "FILE|NAME", "A recorded host, read-only: a .host file or a bundled name.")
]
Simulated = Annotated[
    str | None, _option("simulate", "FILE|NAME", "A recorded host that reacts to changes; they stay in its file.")
]
Ledger = Annotated[
    str | None, _option("ledger", "FILE", "Another ledger than the host's own.")
]
