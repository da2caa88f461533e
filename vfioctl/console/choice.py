"""The host and log level that a command line selected. May not import typer, so that --version stays fast."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vfioctl.errors import BadSpec

if TYPE_CHECKING:
    import typer

HOSTS = ("root", "host", "simulate")
"""The options that select a host. They exclude each other."""
OPTIONS = (*HOSTS, "ledger", "verbose", "log_level", "quiet")
"""The options that every command accepts, before and after its name."""


class Choice:
    """The shared options of one command line, before environment variables. `at_end`: called when it has ended."""

    def __init__(self, opener: Callable[[Choice], Any]) -> None:
        self._opener = opener
        self.given: dict[str, str] = {}
        self.log_level = ""
        """A level of `logging` in lower case; empty to log nothing."""
        self.at_end = ExitStack()

    def open(self) -> Any:
        """Open and return the session. Raises BadSpec if several hosts were selected, and what the opener raises."""
        return self._opener(self)

    @property
    def host(self) -> tuple[str, str]:
        """Return one of HOSTS and its value; two empty strings for this machine. Raises BadSpec for more than one."""
        choices = {f"--{name}": self.given[name] for name in HOSTS if name in self.given}
        asked = choices or {name: value for name in map(variable, HOSTS) if (value := os.environ.get(name))}
        if len(asked) > 1:
            raise BadSpec(f"{' and '.join(asked)} exclude each other", hint="give one of them")
        for name, value in asked.items():
            return name.removeprefix("--").removeprefix("VFIOCTL_").lower(), value
        return "", ""

    @property
    def ledger(self) -> Path | None:
        """Return the ledger that was given, if any. Raises BadSpec for a directory, or if its directory is missing."""
        text = self.given.get("ledger") or os.environ.get(variable("ledger"))
        if text and not os.path.isdir(Path(text).parent):
            raise BadSpec(f"--ledger {text}: there is no directory {Path(text).parent}", hint="create it first")
        if text and os.path.isdir(text):
            raise BadSpec(f"--ledger {text} is a directory", hint=f"name a file, such as {Path(text, 'ledger.db')}")
        return Path(text) if text else None

    def arguments(self) -> str:
        """Return the options that select the same host, for a suggested next command."""
        import shlex

        return "".join(f" --{name} {shlex.quote(value)}" for name, value in self.given.items())


_OF_THIS_COMMAND: ContextVar[Choice | None] = ContextVar("choice", default=None)


def remember(choice: Choice) -> None:
    """Make it the choice of the command line that runs now, until its `at_end`."""
    choice.at_end.callback(_OF_THIS_COMMAND.reset, _OF_THIS_COMMAND.set(choice))


def on_this_host(command: str) -> str:
    """Return a suggested `vfioctl` command with the options that select the host of this command line."""
    choice = _OF_THIS_COMMAND.get()
    is_one = command.startswith("vfioctl ") and not command.endswith(" --help")
    return f"{command}{choice.arguments()}" if choice and is_one else command


def variable(name: str) -> str:
    """Return the environment variable of an option."""
    return f"VFIOCTL_{name.upper()}"


def chosen(ctx: typer.Context) -> Choice:
    """Return the choice of a command's context."""
    choice = ctx.find_root().obj
    assert isinstance(choice, Choice)
    return choice


def opened(ctx: typer.Context) -> Any:
    """Open the `vfioctl.session.Session` of a command. Untyped, because the console may not import the session."""
    return chosen(ctx).open()
