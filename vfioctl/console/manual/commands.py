"""Reads the tree of commands into values, the one source of `vfioctl man`, the man pages and the reference.

May not run a command; imports one only when its page is asked for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from textwrap import dedent
from typing import NamedTuple

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from vfioctl.console.choice import OPTIONS
from vfioctl.console.lazy import LazyGroup

_SHARED = (*OPTIONS, "help")
_EXAMPLES = "[bold]Examples[/]\n"


class Entry(NamedTuple):
    """One argument, option or variable, and what it means."""

    term: str
    meaning: str


@dataclass(frozen=True)
class CommandPage:
    """What one command says of itself."""

    words: tuple[str, ...]
    """Such as vfioctl, claim, create."""
    usage: str
    summary: str
    description: tuple[str, ...]
    """Its paragraphs, without the summary."""
    arguments: tuple[Entry, ...]
    options: tuple[Entry, ...]
    """Its own."""
    shared: tuple[Entry, ...]
    """Those that every command has: the host, messages, help."""
    examples: tuple[str, ...]
    """Command lines."""
    commands: tuple[CommandPage, ...]
    """Its subcommands, and theirs. Of `vfioctl` itself they have a summary only."""

    @property
    def name(self) -> str:
        """The whole name, such as `vfioctl claim create`."""
        return " ".join(self.words)


def program_page(group: LazyGroup) -> CommandPage:
    """Return the page of `vfioctl` itself."""
    return _page(group, _context(group))


def command_page(group: LazyGroup, name: str) -> CommandPage:
    """Return the page of one command with its subcommands. Raises KeyError if there is no such command."""
    command = group.load(name)
    return _page(command, typer.Context(command, info_name=name, parent=_context(group)))


def command_pages(group: LazyGroup) -> Iterator[CommandPage]:
    """Yield the page of every command, by name."""
    return (command_page(group, name) for name in sorted(group.places))


def _context(group: LazyGroup) -> typer.Context:
    return typer.Context(group, info_name="vfioctl", **group.context_settings)


def _page(command: TyperCommand | TyperGroup, context: typer.Context) -> CommandPage:
    paragraphs = [" ".join(paragraph.split()) for paragraph in (command.help or "").split("\n\n")]
    parameters = command.get_params(context)
    own = [parameter for parameter in parameters if parameter.name not in _SHARED]
    shared = [parameter for parameter in parameters if parameter.name in _SHARED]
    return CommandPage(
        words=tuple(context.command_path.split()),
        usage=" ".join([context.command_path, *map(_plain, command.collect_usage_pieces(context))]),
        summary=paragraphs[0],
        description=tuple(paragraphs[1:]),
        arguments=_entries(own, TyperArgument, context),
        options=_entries(own, TyperOption, context),
        shared=_entries(shared, TyperOption, context),
        examples=_examples(command.epilog or ""),
        commands=tuple(_children(command, context)),
    )


def _children(command: TyperCommand | TyperGroup, context: typer.Context) -> Iterator[CommandPage]:
    """The pages of subcommands; of one that is a group, those of its own instead."""
    for name, child in getattr(command, "commands", {}).items():
        inner = typer.Context(child, info_name=name, parent=context)
        if getattr(child, "commands", {}):
            yield from _children(child, inner)
        else:
            yield _page(child, inner)


def _plain(piece: str) -> str:
    """A piece of a usage line as manual pages have it: CLAIM for {CLAIM}, and [CLAIM]... for [[CLAIM]...]..."""
    return re.sub(r"^\[(\[.*\])\.\.\.\]", r"\1", re.sub(r"[{}]", "", piece))


def _entries(parameters: Iterable[object], kind: type, context: typer.Context) -> tuple[Entry, ...]:
    return tuple(
        _entry(parameter, context)
        for parameter in parameters
        if isinstance(parameter, kind) and isinstance(parameter, TyperArgument | TyperOption)
    )


def _entry(parameter: TyperArgument | TyperOption, context: typer.Context) -> Entry:
    record = parameter.get_help_record(context)
    return Entry(_term(parameter, context), " ".join(record[1].split()) if record else "")


def _term(parameter: TyperArgument | TyperOption, context: typer.Context) -> str:
    if isinstance(parameter, TyperArgument):
        return parameter.metavar or str(parameter.name).upper()
    names = ", ".join(sorted(parameter.opts, key=lambda name: name.startswith("--")))
    value = "" if parameter.is_flag else parameter.metavar or parameter.display_type_rich(context) or ""
    return f"{names}{value}" if value.startswith("[=") else f"{names} {value}".rstrip()


def _examples(epilog: str) -> tuple[str, ...]:
    lines: Sequence[str] = dedent(epilog.removeprefix(_EXAMPLES)).splitlines() if _EXAMPLES in epilog else ()
    return tuple(line for line in lines if line)
