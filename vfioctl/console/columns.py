"""Aligned columns of text that fit a width; optional columns are shown only if there is room.

May not know devices. Lines are generated one at a time, so that large tables need little memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from vfioctl.console.words import plain

Cell = str | Text
_GAP = "  "
_LEAST_STRETCH = 12


class Column(NamedTuple):
    """A column. The last one takes the remaining width, and is truncated if that is too small."""

    title: str
    right: bool = False
    optional: bool = False
    """Whether the column is shown only if every cell of the last column still fits; earlier columns come first."""


class Layout:
    """The columns shown and their widths, for all rows of a page."""

    def __init__(self, columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int) -> None:
        natural = [_widest(column, [row[index] for row in rows]) for index, column in enumerate(columns)]
        last = len(columns) - 1
        shown = {index for index, column in enumerate(columns) if not column.optional}
        room = width - sum(natural[index] + len(_GAP) for index in shown - {last})
        for index in range(last):
            wanted = natural[index] + len(_GAP)
            if columns[index].optional and natural[index] and natural[last] + wanted <= room:
                shown.add(index)
                room -= wanted
        self._columns = columns
        self._widths = [(index, natural[index]) for index in sorted(shown - {last})]
        self._rest = max(room, _LEAST_STRETCH)

    def header(self) -> Text:
        return Text(self._line([column.title for column in self._columns]).plain, style="bold")

    def flowing(self, rows: Sequence[Sequence[Cell]]) -> Iterator[Text]:
        """Yield lines that wrap instead of being truncated."""
        for line in self.lines(rows):
            line.no_wrap, line.overflow = False, "fold"
            yield line

    def lines(self, rows: Sequence[Sequence[Cell]]) -> Iterator[Text]:
        return (self._line(row) for row in rows)

    def _line(self, row: Sequence[Cell]) -> Text:
        line = Text(no_wrap=True, overflow="ignore")
        for index, wide in self._widths:
            line.append_text(_fitted(row[index], wide, right=self._columns[index].right))
            line.append(_GAP)
        line.append_text(_cut(row[-1], self._rest))
        return line


class Whole:
    """An indented line that is never truncated or wrapped, so that paths and commands can be copied.

    `rest`: text that moves to the next line, indented by `hang` columns, if it does not fit beside `text`.
    """

    def __init__(self, text: str, rest: str = "", *, hang: int = 0) -> None:
        self._text, self._rest, self._hang = text, rest, hang

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> Iterator[Text]:
        for line in _beside(self._text, self._rest, self._hang, options.max_width - len(_GAP)):
            yield Text(f"{_GAP}{line}", no_wrap=True, overflow="ignore")


class Heading:
    """A bold line that wraps; `rest` is never broken."""

    def __init__(self, text: str, rest: str) -> None:
        self._text, self._rest = text, rest

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> Iterator[Text]:
        for line in _beside(self._text, self._rest, len(_GAP), options.max_width):
            yield Text(line, style="bold")


def _beside(text: str, rest: str, hang: int, width: int) -> list[str]:
    whole = f"{text} {rest}".rstrip()
    return [whole] if not rest or cell_len(whole) <= width else [text, f"{' ' * hang}{rest}"]


def table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int) -> Iterator[Text]:
    """Yield a table: the header and its rows."""
    layout = Layout(columns, rows, width)
    yield layout.header()
    yield from layout.lines(rows)


def note_lines(notes: Iterable[str]) -> Iterator[RenderableType]:
    """Yield an empty line and a list with hanging indents; nothing if there are no notes."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    for note in notes:
        grid.add_row("-", Text(plain(note)))
    if grid.row_count:
        yield Padding(grid, (1, 0, 0, 0))


def glossary(words: Mapping[str, str]) -> RenderableType:
    """Return a list of names with their meanings."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    for word, meaning in words.items():
        grid.add_row(Text(plain(word), style="bold"), Text(plain(meaning)))
    return grid


def _widest(column: Column, cells: Sequence[Cell]) -> int:
    """Return the width of the widest cell; 0 for an optional column without any text."""
    widest = max((_length(cell) for cell in cells), default=0)
    return max(widest, len(column.title)) if widest or not column.optional else 0


def _length(cell: Cell) -> int:
    return cell_len(cell if isinstance(cell, str) else cell.plain)


def _fitted(cell: Cell, wide: int, *, right: bool) -> Text:
    text = Text(cell) if isinstance(cell, str) else cell.copy()
    missing = max(0, wide - _length(cell))
    return Text(" " * missing).append_text(text) if right else text.append(" " * missing)


def _cut(cell: Cell, wide: int) -> Text:
    text = Text(cell) if isinstance(cell, str) else cell
    if _length(cell) <= wide:
        return text
    return Text(set_cell_size(text.plain, wide - 1).rstrip() + "\N{HORIZONTAL ELLIPSIS}", style=text.style)
