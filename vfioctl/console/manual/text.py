"""Writes a manual page as plain text, for where man(1) is absent and for pipes."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

from vfioctl.console.manual.commands import Entry
from vfioctl.console.manual.page import Block, Heading, Lines, ManualPage, Paragraph

_TEXT, _DEEPER = " " * 7, " " * 14
WIDEST = 80
"""Width in columns at which a line is easy to read."""


def text(page: ManualPage, width: int = WIDEST) -> str:
    """Return a page as text. `width`: in columns."""
    return "\n".join(_page(page, min(width, WIDEST)))


def _page(page: ManualPage, width: int) -> Iterator[str]:
    for section in page.sections:
        yield section.title
        for block in section.blocks:
            yield from _block(block, width)
            yield ""


def _block(block: Block, width: int) -> Iterator[str]:
    if isinstance(block, Heading):
        yield f"   {block.text}"
    elif isinstance(block, Lines):
        yield from (f"{_TEXT}    {line}" for line in block.lines)
    elif isinstance(block, Paragraph):
        yield from _wrapped(block.text, _TEXT, width)
    else:
        yield from _entry(block, width)


def _entry(entry: Entry, width: int) -> Iterator[str]:
    yield f"{_TEXT}{entry.term}"
    yield from _wrapped(entry.meaning, _DEEPER, width)


def _wrapped(words: str, indent: str, width: int) -> list[str]:
    # an option is not broken at its hyphen, nor a path that is longer than the line
    return wrap(
        words,
        width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
