"""Which host a command is about. May not look at it; it is opened when a command asks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from vfioctl.errors import BadSpec

if TYPE_CHECKING:
    import typer

    from vfioctl.host import Host

_EXCLUSIVE = ("root", "host", "simulate")
OPTIONS = (*_EXCLUSIVE, "ledger")


class Choice:
    """What was given on the command line, wherever it stood; the environment counts only where that is silent."""

    def __init__(self) -> None:
        self.given: dict[str, str] = {}

    def open(self) -> Host:
        """The host. Raises BadSpec when several were asked for, and whatever opening it raises."""
        from vfioctl.host import Host as Front

        option, value = self._one()
        ledger = self._ledger()
        if option == "root":
            return Front.at(Path(value), ledger)
        if option == "host":
            return Front.recorded(value, ledger)
        return Front.simulated(value, ledger) if option == "simulate" else Front.live(ledger)

    def arguments(self) -> str:
        """The options that lead to the same host again, for a command to run next."""
        import shlex

        return "".join(f" --{name} {shlex.quote(value)}" for name, value in self.given.items())

    def _one(self) -> tuple[str, str]:
        given = {f"--{name}": self.given[name] for name in _EXCLUSIVE if name in self.given}
        asked = given or {variable(name): os.environ[variable(name)] for name in _EXCLUSIVE if _in_environment(name)}
        if len(asked) > 1:
            raise BadSpec(f"{' and '.join(asked)} exclude each other", hint="give one of them")
        for name, value in asked.items():
            return name.removeprefix("--").removeprefix("VFIOCTL_").lower(), value
        return "", ""

    def _ledger(self) -> Path | None:
        text = self.given.get("ledger") or os.environ.get(variable("ledger"))
        return Path(text) if text else None


def variable(name: str) -> str:
    """The environment variable of an option."""
    return f"VFIOCTL_{name.upper()}"


def _in_environment(name: str) -> bool:
    return bool(os.environ.get(variable(name)))


def chosen(ctx: typer.Context) -> Choice:
    """The choice that belongs to a command's context."""
    return ctx.find_root().ensure_object(Choice)
