"""Writes a manual page in the language of man(7), for groff and mandoc. The same page gives the same text: no date."""

from __future__ import annotations

import re
from collections.abc import Iterator

from vfioctl import __version__
from vfioctl.console.manual.commands import Entry
from vfioctl.console.manual.page import Block, Heading, Lines, ManualPage, Paragraph

_SPECIAL = {
    "\\": "\\e",
    "-": "\\-",  # a minus that can be copied, and at which no line is broken
    "'": "\\(aq",
    "`": "\\(ga",
    "^": "\\(ha",
    "~": "\\(ti",
    '"': "\\(dq",
}


def roff(page: ManualPage) -> str:
    """Return the source of a manual page."""
    return "\n".join([*_page(page), ""])


def escaped(text: str) -> str:
    """Return a text of which roff takes no character for a request or an escape."""
    shown = "".join(
        _SPECIAL.get(letter) or (letter if letter.isascii() else f"\\[u{ord(letter):04X}]") for letter in text
    )
    return f"\\&{shown}" if shown.startswith(".") else shown


def _page(page: ManualPage) -> Iterator[str]:
    yield f'.TH "{escaped(page.name.upper())}" "1" "" "vfioctl {escaped(__version__)}" "vfioctl"'
    yield ".nh"
    yield ".ad l"
    for section in page.sections:
        yield f'.SH "{escaped(section.title)}"'
        for number, block in enumerate(section.blocks):
            yield from _block(block, first=number == 0)


def _block(block: Block, *, first: bool) -> Iterator[str]:
    if isinstance(block, Heading):
        yield f'.SS "{escaped(block.text)}"'
    elif isinstance(block, Paragraph):
        yield from [] if first else [".PP"]
        yield _marked(block.text)
    elif isinstance(block, Entry):
        yield ".TP"
        yield _term(block.term)
        yield _marked(block.meaning)
    else:
        yield from _lines(block)


def _lines(block: Lines) -> Iterator[str]:
    yield from (".PP", ".nf", ".RS 4")
    yield from map(escaped, block.lines)
    yield from (".RE", ".fi")


def _marked(text: str) -> str:
    parts = re.split(r"`([^`]*)`", text)
    return "".join(_bold(part) if number % 2 else escaped(part) for number, part in enumerate(parts))


def _term(term: str) -> str:
    """The names of an option in bold, its value in italics, as in `-o, --output FILE` and `--fix[=KIND]`."""
    if not term.startswith("-"):
        return _bold(term)
    *names, last = term.split(", ")
    name = last.split(" ")[0].split("[")[0]
    value = last.removeprefix(name)
    return ", ".join(map(_bold, [*names, name])) + (f"\\fI{escaped(value)}\\fR" if value else "")


def _bold(text: str) -> str:
    return f"\\fB{escaped(text)}\\fR"
