"""The reference of commands and of environment variables, in Markdown, and the manual pages: from what the commands say
of themselves."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from vfioctl.app import places
from vfioctl.console.lazy import built
from vfioctl.console.manual.commands import CommandPage, Entry, command_pages, program_page
from vfioctl.console.manual.environment import OF_THE_SYSTEM, OF_VFIOCTL, Variable
from vfioctl.console.manual.page import ManualPage, command_manual, program_manual

_COMMANDS = """# Commands

What `--help` prints, of every command. [What each prints with `--json`](json.md); [exit codes](exit-codes.md);
[environment variables](environment.md). This page is generated: `make documents`.
"""
_VARIABLES = """# Environment variables

An option on the command line takes precedence over its variable. An empty variable counts as not set. This page is
generated: `make documents`.

vfioctl finds the commands that it starts in `/usr/sbin`, `/usr/bin`, `/sbin` and `/bin`, whatever `PATH` says. They get
`PATH` and `LC_ALL=C` and nothing else. Started by root, vfioctl also drops all variables that it does not use.
"""


def commands() -> str:
    """Return the page of all commands."""
    group = built(places())
    return "\n".join([_COMMANDS, *_program(program_page(group)), *_each(command_pages(group))])


def manual_pages() -> Iterator[ManualPage]:
    """Yield all manual pages."""
    group = built(places())
    yield program_manual(program_page(group))
    yield from map(command_manual, command_pages(group))


def environment() -> str:
    """Return the page of all environment variables."""
    return "\n".join([_VARIABLES, *_variables("vfioctl", OF_VFIOCTL), *_variables("The system", OF_THE_SYSTEM)])


def _program(page: CommandPage) -> Iterator[str]:
    yield "## Options of `vfioctl` itself\n"
    yield from _entries("", page.options)
    yield "## Options of every command\n"
    yield "They may stand before the command's name and after it.\n"
    yield from _entries("", page.shared)


def _each(pages: Iterable[CommandPage]) -> Iterator[str]:
    for page in pages:
        yield from _command(page, "##")
        for child in page.commands:
            yield from _command(child, "###")


def _command(page: CommandPage, level: str) -> Iterator[str]:
    yield f"{level} {page.name}\n"
    yield f"```text\n{page.usage}\n```\n"
    for paragraph in (page.summary, *page.description):
        yield f"{markdown(paragraph)}\n"
    yield from _entries("Arguments:", page.arguments)
    yield from _entries("Options:", page.options)
    if page.examples:
        yield "Examples:\n"
        yield "\n".join(["```text", *page.examples, "```", ""])


def _entries(title: str, entries: Iterable[Entry]) -> Iterator[str]:
    lines = [f"- `{entry.term}`: {markdown(entry.meaning)}" for entry in entries]
    if lines:
        yield from [f"{title}\n"] if title else []
        yield "\n".join([*lines, ""])


def _variables(title: str, variables: Mapping[str, Variable]) -> Iterator[str]:
    rows = [f"| `{name}` | {markdown(v.meaning)} | {v.option and f'`{v.option}`'} |" for name, v in variables.items()]
    yield "\n".join([f"## {title}\n", "| variable | meaning | option |", "|---|---|---|", *rows, ""])


def markdown(text: str) -> str:
    """Return a text of which Markdown takes no character for markup, except `code`."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"([*<|\\]|(?<!\w)_|_(?!\w))", r"\\\1", part) for part in parts
    )
