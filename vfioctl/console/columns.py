"""Aligned columns of text that fit a width; optional columns are shown only if there is room.

May not know devices. Lines are generated one at a time, so that large tables need little memory. A terminal cuts lines
that are too long; elsewhere nothing is cut."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from vfioctl.console.output import notes_wanted
from vfioctl.console.words import plain

Cell = str | Text
_GAP = "  "
_NARROW = 60
"""Width in columns below which a table is shown as blocks."""
_LEAST_ROOM = 12
"""Columns for the last cell below which a table is shown as blocks."""


class Column(NamedTuple):
    """A column. The last one takes the remaining width; a terminal that is too narrow for its cells cuts them."""

    title: str
    right: bool = False
    optional: bool = False
    """Whether the column is shown only if every cell of the last column still fits; earlier columns come first."""


class Layout:
    """The columns shown and their widths, for all rows of a page. Where no table fits, each row is a block of lines."""

    def __init__(self, columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int) -> None:
        natural = [_widest(column, [row[index] for row in rows]) for index, column in enumerate(columns)]
        last = len(columns) - 1
        shown = {index for index, column in enumerate(columns) if not column.optional}
        room = width - sum(natural[index] + len(_GAP) for index in shown - {last})
        titled = any(column.title for column in columns)
        self._in_blocks = titled and (width < _NARROW or room < min(natural[last], _LEAST_ROOM))
        for index in range(last):
            wanted = natural[index] + len(_GAP)
            if columns[index].optional and natural[index] and natural[last] + wanted <= room:
                shown.add(index)
                room -= wanted
        self.width, self._columns = width, columns
        self._widths = [(index, natural[index]) for index in sorted(shown - {last})]

    def shows(self, index: int) -> bool:
        """Whether a column has its place in every line."""
        return not self._in_blocks and any(index == shown for shown, _ in self._widths)

    def header(self) -> Iterator[Text]:
        """Yield the line of the titles; nothing above blocks, which have them inside."""
        if not self._in_blocks:
            yield Text(self._line([column.title for column in self._columns]).plain, style="bold", no_wrap=True)

    def flowing(self, rows: Sequence[Sequence[Cell]]) -> Iterator[Text]:
        """Yield lines that wrap instead of being truncated."""
        for row in rows:
            line = self._line(row)
            line.no_wrap, line.overflow = False, "fold"
            yield line

    def lines(self, rows: Sequence[Sequence[Cell]], *, cut: bool = True) -> Iterator[RenderableType]:
        """Yield a line or a block for each row. `cut`: a terminal may cut lines that are too long."""
        return (self._block(row) if self._in_blocks else self._line(row, cut=cut) for row in rows)

    def _line(self, row: Sequence[Cell], *, cut: bool = True) -> Text:
        line = Text(no_wrap=True, overflow="ellipsis" if cut else "ignore")
        for index, wide in self._widths:
            line.append_text(_fitted(row[index], wide, right=self._columns[index].right))
            line.append(_GAP)
        return line.append_text(_text(row[-1]))

    def _block(self, row: Sequence[Cell]) -> RenderableType:
        grid = _grid()
        for column, cell in zip(self._columns, row, strict=True):
            if _length(cell) and not column.optional:
                grid.add_row(Text(column.title, style="bold"), _text(cell))
        return Padding(grid, (1, 0, 0, 0), expand=False)


class Whole:
    """An indented line that is never truncated or wrapped, so that paths and commands can be copied.

    `rest`: text that moves to the next line, indented by `hang` columns, if it does not fit beside `text`."""

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


def table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int) -> Iterator[RenderableType]:
    """Yield a table: the header and its rows."""
    layout = Layout(columns, rows, width)
    yield from layout.header()
    yield from layout.lines(rows)


def note_lines(notes: Iterable[str]) -> Iterator[RenderableType]:
    """Yield an empty line and a list with hanging indents; nothing if there are no notes, or none are wanted."""
    if not notes_wanted():
        return
    grid = _grid(gap=1)
    for note in notes:
        grid.add_row("-", Text(plain(note)))
    if grid.row_count:
        yield Text()
        yield grid


def fact_grid(facts: Iterable[tuple[str, Cell | None]], *, style: str = "", least: int = 0) -> Table:
    """Return a list of names with their values, if any. `least`: the least width of the names."""
    grid = _grid()
    grid.columns[0].min_width = least
    for name, fact in facts:
        if fact:
            grid.add_row(Text(plain(name), style=style), _text(fact))
    return grid


def _grid(*, gap: int = len(_GAP)) -> Table:
    grid = Table.grid(padding=(0, gap, 0, 0))
    grid.add_column()
    grid.add_column(overflow="fold")
    return grid


def _widest(column: Column, cells: Sequence[Cell]) -> int:
    widest = max((_length(cell) for cell in cells), default=0)
    return max(widest, len(column.title)) if widest or not column.optional else 0


def _length(cell: Cell) -> int:
    return cell_len(plain(cell if isinstance(cell, str) else cell.plain))


def _text(cell: Cell) -> Text:
    """Return the cell as it is shown: escaped, because its width counts."""
    return Text(plain(cell)) if isinstance(cell, str) else Text(plain(cell.plain), style=cell.style)


def _fitted(cell: Cell, wide: int, *, right: bool) -> Text:
    text = _text(cell)
    missing = max(0, wide - cell_len(text.plain))
    return Text(" " * missing).append_text(text) if right else text.append(" " * missing)
