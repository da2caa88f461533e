"""The entry point: the table of commands, the root options, and the one place that catches VfioctlError.

Each command lives in a module of its own that is imported when it is called, so this module may
import nothing that a command does not need: not the models, not the host, not rich.
"""

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple, cast

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command

from vfioctl import __version__
from vfioctl.cli import choice
from vfioctl.cli.failure import report
from vfioctl.cli.output import ReaderGone, require_stdout, say
from vfioctl.errors import RequestError, VfioctlError

LOOK, CHANGE = "Look", "Change"


class Entry(NamedTuple):
    """A command before it is imported."""

    panel: str
    summary: str
    """The first line of the command's own help; a test compares them."""


COMMANDS = {
    "inventory": Entry(LOOK, "List the GPUs and what must travel with them."),
    "show": Entry(LOOK, "Show everything about one device."),
    "history": Entry(LOOK, "List the changes that were made here."),
    "snapshot": Entry(LOOK, "Write this host down as one text file."),
    "hosts": Entry(LOOK, "List the bundled hosts that --simulate and --host know by name."),
    "bind": Entry(CHANGE, "Hand devices to vfio-pci, ready for a guest."),
    "unbind": Entry(CHANGE, "Give devices back to the drivers they had."),
    "apply": Entry(CHANGE, "Run a plan that was saved with --dry-run --json."),
    "recover": Entry(CHANGE, "Finish what a crash or a power cut left half done."),
}


class LazyGroup(TyperGroup):
    """Knows its commands by name and summary, and imports one when it is called."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, entry in COMMANDS.items():
            self.add_command(TyperCommand(name, help=entry.summary, rich_help_panel=entry.panel))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and self._load(command.name), rest

    def _load(self, name: str) -> TyperCommand:
        command = cast("TyperCommand", get_command(importlib.import_module(f"vfioctl.cli.{name}").app))
        known = {parameter.name for parameter in command.params}
        command.params += [p for p in self.params if p.name in choice.OPTIONS and p.name not in known]
        return command


def _tell_version(wanted: bool) -> None:  # noqa: FBT001 - typer's form of a callback
    if wanted:
        typer.echo(f"vfioctl {__version__}")
        raise typer.Exit


app = typer.Typer(
    cls=LazyGroup,
    invoke_without_command=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def vfioctl(
    ctx: typer.Context,
    *,
    root: choice.Root = None,
    host: choice.Recorded = None,
    simulate: choice.Simulated = None,
    ledger: choice.Ledger = None,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_tell_version, help="Say the version.")
    ] = False,
) -> None:
    """Hands GPUs over: from the host's driver to a virtual machine or a secure container, and back.

    Any command can be tried without a GPU on a simulated host: vfioctl --simulate hgx8 inventory
    """
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())
        raise typer.Exit(2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code: 0, 1 to 7 by who must act, 130 and 141 as a shell counts."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        require_stdout()
        return _run(words)
    except VfioctlError as error:
        return report(error, as_json=_wants_json(words))
    except TyperException as error:
        return report(_usage(error), as_json=_wants_json(words))
    except ReaderGone:
        return 141
    except (KeyboardInterrupt, typer.Abort):
        say("vfioctl: interrupted")
        return 130


def _run(words: list[str]) -> int:
    command = get_command(app)
    if "_VFIOCTL_COMPLETE" in os.environ:
        command.main(words, prog_name="vfioctl")
    try:
        with command.make_context("vfioctl", words) as ctx:
            command.invoke(ctx)
    except typer.Exit as done:
        return done.exit_code
    return 0


def _wants_json(words: Sequence[str]) -> bool:
    """Whether failures are JSON too; asked of the bare words, for a usage error leaves nothing parsed."""
    return "--json" in (words[: words.index("--")] if "--" in words else words)


def _usage(error: TyperException) -> RequestError:
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "vfioctl"
    return RequestError(error.format_message(), next_command=f"{command} --help")


if __name__ == "__main__":
    sys.exit(main())
