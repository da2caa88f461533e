"""Manual pages as values: sections of paragraphs, definitions and command lines. Knows no format."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from vfioctl.console.manual.commands import CommandPage, Entry
from vfioctl.console.manual.environment import OF_THE_SYSTEM, OF_VFIOCTL
from vfioctl.console.manual.exit_codes import OTHERS, exit_codes
from vfioctl.console.manual.files import FILES


@dataclass(frozen=True)
class Paragraph:
    """A text. What is in backquotes is a command or a name."""

    text: str


@dataclass(frozen=True)
class Heading:
    """The title of a part of a section."""

    text: str


@dataclass(frozen=True)
class Lines:
    """Command lines, as they are."""

    lines: tuple[str, ...]


Block = Paragraph | Heading | Lines | Entry


@dataclass(frozen=True)
class Section:
    """A section of a page. `title`: in capitals, as man(7) has it."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class ManualPage:
    """A page of section 1 of the manual."""

    name: str
    """Such as vfioctl-bind, which is also the name of its file."""
    sections: tuple[Section, ...]


def program_manual(page: CommandPage) -> ManualPage:
    """Return the page vfioctl(1)."""
    commands = [Entry(f"{_file_name(child)}(1)", child.summary) for child in page.commands]
    sections: dict[str, Sequence[Block]] = {
        "NAME": [_name(page)],
        "SYNOPSIS": [Lines((page.usage,))],
        "DESCRIPTION": [*map(Paragraph, (page.summary, *page.description))],
        "COMMANDS": commands,
        "OPTIONS": page.options,
        "OPTIONS OF EVERY COMMAND": page.shared,
        "EXIT STATUS": _exit_status(),
        "ENVIRONMENT": [Entry(name, about.meaning) for name, about in {**OF_VFIOCTL, **OF_THE_SYSTEM}.items()],
        "FILES": [Entry(*file) for file in FILES.items()],
        "SEE ALSO": [Paragraph(", ".join(sorted(entry.term for entry in commands)))],
    }
    return _manual(page, sections)


def command_manual(page: CommandPage) -> ManualPage:
    """Return the page of one command, with all its subcommands."""
    sections: dict[str, Sequence[Block]] = {
        "NAME": [_name(page)],
        "SYNOPSIS": [Lines(tuple(each.usage for each in page.commands or (page,)))],
        "DESCRIPTION": [*map(Paragraph, (page.summary, *page.description))],
        "ARGUMENTS": page.arguments,
        "OPTIONS": page.options,
        "COMMANDS": [*chain.from_iterable(map(_subcommand, page.commands))],
        "OPTIONS OF EVERY COMMAND": page.shared,
        "EXAMPLES": _lines(page.examples),
        "EXIT STATUS": _exit_status(),
        "ENVIRONMENT AND FILES": [Paragraph("See vfioctl(1).")],
        "SEE ALSO": [Paragraph(", ".join(_see_also(page)))],
    }
    return _manual(page, sections)


def _manual(page: CommandPage, sections: dict[str, Sequence[Block]]) -> ManualPage:
    return ManualPage(
        _file_name(page), tuple(Section(title, tuple(blocks)) for title, blocks in sections.items() if blocks)
    )


def _file_name(page: CommandPage) -> str:
    return "-".join(page.words)


def _name(page: CommandPage) -> Paragraph:
    """The line that whatis(1) and apropos(1) read."""
    return Paragraph(f"{_file_name(page)} - {page.summary[:1].lower()}{page.summary[1:].removesuffix('.')}")


def _subcommand(page: CommandPage) -> Iterator[Block]:
    yield Heading(" ".join(page.words[1:]))
    yield Lines((page.usage,))
    yield from map(Paragraph, (page.summary, *page.description))
    yield from page.arguments
    yield from page.options
    yield from _lines(page.examples)


def _lines(lines: tuple[str, ...]) -> list[Block]:
    return [Lines(lines)] if lines else []


def _exit_status() -> list[Block]:
    first, *rest = OTHERS
    codes = [first, *((code.code, code.meaning) for code in exit_codes()), *rest]
    meanings: dict[int, list[str]] = {}
    for code, meaning in codes:
        meanings.setdefault(code, []).append(meaning)
    return [Entry(str(code), "; or ".join(texts)) for code, texts in meanings.items()]


def _see_also(page: CommandPage) -> Iterator[str]:
    """The program's page, and those of the commands that this one names."""
    named = {name for text in _texts(page) for name in re.findall(r"\bvfioctl ([a-z]+)\b", text)}
    yield "vfioctl(1)"
    yield from (f"vfioctl-{name}(1)" for name in sorted(named - {page.words[1]}))


def _texts(page: CommandPage) -> Iterable[str]:
    yield from (*page.description, *page.examples)
    yield from (entry.meaning for entry in page.options)
    for child in page.commands:
        yield from _texts(child)
