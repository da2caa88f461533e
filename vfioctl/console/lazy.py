"""The command `vfioctl`: its own options, and a group that imports a command only when it is called.

May not import a command's module, rich or the models, so that --help stays fast."""

from __future__ import annotations

import errno as errnos
import importlib
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from enum import EnumType
from functools import cache
from typing import Annotated, Any, NamedTuple, TypeVar, cast

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.exceptions import TyperException
from typer.main import get_command, get_command_name
from typer.models import CommandInfo

from vfioctl.console import options
from vfioctl.console.choice import OPTIONS, Choice
from vfioctl.console.output import OutputLost, ReaderGone, abandon_stdout, tell_version
from vfioctl.console.words import completes, completion_text
from vfioctl.errors import RequestError

F = TypeVar("F", bound=Callable[..., Any])
_IN_PLAIN_WORDS = (
    ("Input should be a valid integer, unable to parse string as an integer", "it is not a whole number"),
    ("Input should be greater than or equal to", "it must be at least"),
    ("Input should be less than or equal to", "it must be at most"),
    ("Input should be", "it must be"),
    ("Value error, ", ""),
)
"""What pydantic says, through typer, of an option's value, and the words for it."""
_OUTPUT_ERRNOS = frozenset({errnos.EPIPE, errnos.ENOSPC, errnos.EDQUOT, errnos.EFBIG, errnos.EIO})


class Place(NamedTuple):
    """A command that is imported on first use."""

    module: str
    """A module whose `app` is a typer application of one command or one group of commands."""
    panel: str
    summary: str
    """The first line of the command's own help; a test compares them."""


# typer validates every value with pydantic, even a missing one. A listing does without pydantic, whose import takes
# longer than reading a small host: plain text, the names of an enumeration and missing values skip the validation.


class _Option(TyperOption):
    def process_value(self, ctx: Any, value: Any) -> Any:
        value = _member(self, value)
        return _checked(self, ctx, value) if _needs_no_check(self, value, ctx) else super().process_value(ctx, value)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        return _harmless(super().shell_complete(ctx, incomplete))


class _Argument(TyperArgument):
    def process_value(self, ctx: Any, value: Any) -> Any:
        value = _member(self, value)
        return _checked(self, ctx, value) if _needs_no_check(self, value, ctx) else super().process_value(ctx, value)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        return _harmless(super().shell_complete(ctx, incomplete))


def _harmless(items: list[Any]) -> list[Any]:
    """Completions that the shell takes as they are: names of a host are neither evaluated nor control the terminal."""
    offered = [item for item in items if completes(item.value)]
    for item in offered:
        item.help = item.help and completion_text(item.help)
    if "_VFIOCTL_COMPLETE" in os.environ:
        # typer would import rich for zsh, to look for markup in words that have none; that takes a third of the time
        sys.modules.setdefault("rich", cast("Any", None))
    return offered


def _member(parameter: _Option | _Argument, value: object) -> object:
    """The member of the parameter's enumeration that the value names; the value itself if it names none."""
    kind: Any = parameter.type_descriptor.annotation
    if isinstance(kind, EnumType):
        with suppress(ValueError):
            return kind(value)
    return value


def _needs_no_check(parameter: _Option | _Argument, value: object, ctx: Any) -> bool:
    if value is None or value == ():
        return not parameter.required or bool(ctx.resilient_parsing)  # a line that is being completed may lack it
    annotation = parameter.type_descriptor.annotation
    if parameter.multiple or parameter.nargs == -1:
        return annotation == list[str] and isinstance(value, list | tuple)
    return isinstance(value, annotation) if annotation is str or isinstance(annotation, EnumType) else False


def _checked(parameter: _Option | _Argument, ctx: Any, value: Any) -> Any:
    if value is None and (parameter.multiple or parameter.nargs == -1):
        value = ()
    return parameter.callback(ctx, parameter, value) if parameter.callback else value


def _suited(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""  # not `<bool>`
        if type(parameter) is TyperOption:
            parameter.__class__ = _Option
        elif type(parameter) is TyperArgument:
            parameter.__class__ = _Argument
    return parameters


class Command(TyperCommand):
    """A command that does not import pydantic for plain text parameters."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _suited(super().get_params(ctx))


class Group(TyperGroup):
    """A command with subcommands."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _suited(super().get_params(ctx))


class App(typer.Typer):
    """A typer application whose help ends with examples: lines of text, each indented by two spaces."""

    def with_examples(
        self, examples: str, *, name: str | None = None, cls: type[TyperCommand] = Command
    ) -> Callable[[F], F]:
        """Return a decorator that adds a command to the application. `name`: None for the function's."""
        return self.command(name, cls=cls, epilog=f"[bold]Examples[/]{examples}")

    def group_with_examples(self, examples: str) -> Callable[[F], F]:
        """Return a decorator that makes a function the application's own: its options and help."""
        return self.callback(epilog=f"[bold]Examples[/]{examples}")


class LazyGroup(Group):
    """A group that knows its commands by name and summary and imports one when it is called."""

    places: Mapping[str, Place]
    _loaded: dict[tuple[str, str], TyperCommand]

    def know(self, places: Mapping[str, Place]) -> None:
        """Add commands by their locations."""
        self.places, self._loaded = places, {}
        for name, place in places.items():
            self.add_command(TyperCommand(name, help=place.summary, rich_help_panel=place.panel))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and self.load(str(command.name), rest), rest

    def load(self, name: str, words: Sequence[str] = ()) -> TyperCommand:
        """Import a command, and add the shared options. `words`: if they begin with a subcommand, only it is built."""
        module = importlib.import_module(self.places[name].module)
        wanted = words[0] if words and words[0] in subcommands(module) else ""
        if (name, wanted) not in self._loaded:
            command = cast("TyperCommand", get_command(_with_subcommands(module, wanted)))
            for part in _with_children(command):
                part.params += [parameter for parameter in self.params if parameter.name in OPTIONS]
                part.help = _flowing(part.help or "")
            self._loaded[name, wanted] = command
        return self._loaded[name, wanted]


def _with_children(command: TyperCommand) -> Iterator[TyperCommand]:
    """A command, its subcommands, and theirs."""
    yield command
    for child in getattr(command, "commands", {}).values():
        yield from _with_children(child)


def subcommands(module: Any) -> Collection[str]:
    """Return the names of the subcommands of a module's app; none if it is one command.

    A group's `MODULES` names the modules that add its subcommands, if these are not in the module itself. A subcommand
    may be a group, too, which its module adds with `add_typer`, by its name."""
    if not module.app.registered_callback:
        return ()
    return {*getattr(module, "MODULES", ()), *map(_name_of, module.app.registered_commands)}


def _with_subcommands(module: Any, wanted: str) -> typer.Typer:
    """Return a module's app with the subcommand that is wanted, as typer takes a millisecond for each; or with all."""
    modules: Mapping[str, str] = getattr(module, "MODULES", {})
    app: typer.Typer = copy(module.app)
    app.registered_commands, app.registered_groups = [*app.registered_commands], [*app.registered_groups]
    for name in dict.fromkeys(module for child, module in modules.items() if wanted in ("", child)):
        importlib.import_module(name).add_to(app)
    if wanted:
        app.registered_commands = [command for command in app.registered_commands if _name_of(command) == wanted]
        app.registered_groups = [group for group in app.registered_groups if group.name == wanted]
    return app


def _name_of(command: CommandInfo) -> str:
    return command.name or (get_command_name(command.callback.__name__) if command.callback else "")


def _flowing(text: str) -> str:
    """Join the lines of each paragraph; the terminal wraps them."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def group_app(name: str) -> App:
    """Return a command with subcommands that shows its help if none is given."""
    return App(name=name, cls=Group, no_args_is_help=True, add_completion=False, rich_markup_mode="rich")


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:  # noqa: FBT001 - typer's form of a callback
    if wanted:
        tell_version()
        raise typer.Exit


@app.callback()
def vfioctl(  # noqa: PLR0913 - one for each option
    *,
    root: options.Root = None,
    host: options.Recorded = None,
    simulate: options.Simulated = None,
    ledger: options.Ledger = None,
    verbose: options.Verbose = False,
    log_level: options.Level = None,
    quiet: options.Quiet = False,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Show the version.")
    ] = False,
) -> None:
    """Hands GPUs over: from the host's driver to a virtual machine or a secure container, and back.

    Every command can be tried on a simulated host, without a GPU: vfioctl inventory --simulate hgx8"""
    del root, host, simulate, ledger, verbose, log_level, quiet, version  # their callbacks have stored them


def built(places: Mapping[str, Place]) -> LazyGroup:
    """Return the command `vfioctl` with its subcommands. A process that runs several command lines builds each once."""
    return _built(tuple(places.items()))


@cache
def _built(places: tuple[tuple[str, Place], ...]) -> LazyGroup:
    group = get_command(app)
    assert isinstance(group, LazyGroup)
    group.know(dict(places))
    return group


def run(words: Sequence[str], choice: Choice, places: Mapping[str, Place]) -> int:
    """Run a command line, its host stored in `choice`; return the exit code. Raises VfioctlError, ReaderGone."""
    command = built(places)
    if "_VFIOCTL_COMPLETE" in os.environ:
        command.main(list(words), prog_name="vfioctl", obj=choice)
    try:
        with command.make_context("vfioctl", list(words), obj=choice) as ctx:
            command.invoke(ctx)
    except typer.Exit as done:
        return done.exit_code
    except TyperException as error:
        if not error.format_message():  # no_args_is_help: the help was shown
            return RequestError.exit_code
        raise _usage(error) from error
    except OSError as error:
        if error.filename is None and error.errno in _OUTPUT_ERRNOS:
            raise _lost(error) from error
        raise
    return 0


def _lost(error: OSError) -> Exception:
    """Map a failed write of typer's help text to the same error as for other lost output."""
    abandon_stdout()
    return ReaderGone() if error.errno == errnos.EPIPE else OutputLost.because(error)


def _usage(error: TyperException) -> RequestError:
    context = getattr(error, "ctx", None)
    message = " ".join(error.format_message().split())
    for theirs, ours in _IN_PLAIN_WORDS:
        message = message.replace(theirs, ours)
    return RequestError(message, next_command=f"{context.command_path if context else 'vfioctl'} --help")
