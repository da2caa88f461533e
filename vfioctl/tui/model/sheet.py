"""A screen's table as values: columns, rows in a tree, and how they fit a width. May not do input or output."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size

from vfioctl.console.words import plain

GAP = 2
"""Columns between two cells."""
_LEAST_LAST = 10
"""Columns that the last cell keeps before an optional column is shown."""


class View(StrEnum):
    """A screen. Its number in the bar is its place here."""

    DEVICES = "Devices"
    CLAIMS = "Claims"
    VGPUS = "vGPUs"
    DOMAINS = "Domains"
    HISTORY = "History"
    LOG = "Log"
    DOCTOR = "Doctor"
    KUBELET = "Kubelet"


class Tone(StrEnum):
    """How a cell is emphasized. Its text says the same, for terminals without colours."""

    PLAIN = ""
    GOOD = "good"
    BAD = "bad"
    WARNING = "warning"
    DIM = "dim"
    HEADING = "heading"


class Cell(NamedTuple):
    """The text of a cell, on one line and without control characters, and its tone."""

    text: str
    tone: Tone = Tone.PLAIN


class Column(NamedTuple):
    """A column. The last one of a sheet takes the room that is left."""

    title: str
    right: bool = False
    rank: int = 0
    """0: always shown; columns of higher ranks are shown only where there is room, the lowest first."""
    most: int = 40
    """Its largest width."""
    least: int = 0
    """The width down to which a column that does not fit may shrink; 0: it may not."""


class Row(NamedTuple):
    """One line. `key` says what it is about, and stays the same when the host is read again."""

    key: str
    cells: tuple[Cell, ...]
    depth: int = 0
    parent: str = ""
    """The key of the row that it is below; empty for none."""
    is_heading: bool = False
    """Whether its first cell spans the line, and no action concerns it."""
    is_open: bool | None = None
    """Whether the rows below it are shown; None if there are none."""
    hidden: str = ""
    """Text that is searched and not shown."""

    def has(self, words: Sequence[str]) -> bool:
        """Whether it has all these words, in lower case."""
        text = " ".join((*(cell.text for cell in self.cells), self.hidden)).lower()
        return all(word in text for word in words)


class Sheet:
    """Columns and the rows that are shown. Never changed; equal rows need not be drawn again."""

    def __init__(self, columns: Sequence[Column], rows: Sequence[Row], sort: int | None = None) -> None:
        self.columns, self.rows, self.sort = tuple(columns), tuple(rows), sort

    def prepare(self) -> None:
        """Compute here, in a thread, what drawing needs."""
        len(self.index), self.natural

    @cached_property
    def index(self) -> dict[str, int]:
        """The place of each row by its key."""
        return {row.key: number for number, row in enumerate(self.rows)}

    @cached_property
    def natural(self) -> tuple[int, ...]:
        """The width that each column would like to have; 0 for an optional one without text."""
        widths = [0] * len(self.columns)
        for row in self.rows:
            if not row.is_heading:
                for number, cell in enumerate(row.cells):
                    size = len(cell.text) if cell.text.isascii() else cell_len(cell.text)
                    size += indent(row) if number == 0 else 0
                    widths[number] = max(size, widths[number])
        return tuple(
            min(column.most, max(width, cell_len(column.title) + (self.sort == number)))
            if width or not column.rank
            else 0
            for number, (column, width) in enumerate(zip(self.columns, widths, strict=True))
        )

    def fitted(self, width: int) -> tuple[tuple[int, int], ...]:
        """Return the columns shown in `width`, each with its own width."""
        last = len(self.columns) - 1
        widths = {n: self.natural[n] for n, column in enumerate(self.columns) if not column.rank and n != last}
        room = width - sum(wide + GAP for wide in widths.values())
        ranked = sorted((column.rank, number) for number, column in enumerate(self.columns) if column.rank)
        for _, number in ranked:
            free = room - GAP - min(_LEAST_LAST, self.natural[last])
            wide = min(self.natural[number], max(free, 0))
            if wide and wide >= min(self.natural[number], self.columns[number].least or self.natural[number]):
                widths[number] = wide
                room -= wide + GAP
        return (*sorted(widths.items()), (last, max(room, 1)))


def indent(row: Row) -> int:
    """Return the columns before the text of a row's first cell, with the mark of what is below it."""
    return 2 * row.depth + 2 if row.depth or row.parent or row.is_open is not None else 0


def cell(text: object, tone: Tone = Tone.PLAIN) -> Cell:
    """Return a cell of a text from anywhere: escaped, on one line."""
    return Cell(plain(str(text)), tone)


def heading(key: str, text: str, *, tone: Tone = Tone.HEADING, is_open: bool | None = None) -> Row:
    """Return a row whose only cell spans the line."""
    return Row(key, (cell(text, tone),), is_heading=True, is_open=is_open)


def cut(text: str, width: int, ellipsis: str) -> str:
    """Return the text in exactly `width` columns; a text that is cut ends with `ellipsis`."""
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    return set_cell_size(text, max(0, width - cell_len(ellipsis))) + ellipsis[:width]


def arranged(
    rows: Iterable[Row], *, words: Sequence[str] = (), closed: Collection[str] = (), sort: int | None = None
) -> Iterator[Row]:
    """Yield the rows that are shown. `words`: only rows that have them, with what they are below. `closed`: the keys of
    rows whose rows below are hidden, unless something is searched. `sort`: a column; the rows are then no tree."""
    everything = tuple(rows)
    if words:
        keys = {row.key for row in everything if row.has(words) and not row.is_heading}
        parents = {row.key: row.parent for row in everything}
        for key in tuple(keys):
            while key := parents.get(key, ""):
                keys.add(key)
        everything, closed = tuple(row for row in everything if row.key in keys), ()
    if sort is not None:
        yield from (row for row in everything if row.is_heading and row.is_open is None)
        flat = (row._replace(depth=0, parent="", is_open=None) for row in everything if not row.is_heading)
        yield from sorted(flat, key=lambda row: _order(row.cells[sort].text))
        return
    hidden: set[str] = set()
    for row in everything:
        if row.parent in hidden or row.parent in closed:
            hidden.add(row.key)
            continue
        yield row if row.is_open is None else row._replace(is_open=row.key not in closed)


def _order(text: str) -> tuple[bool, bool, float, str]:
    """Sort by number where there is one, then by text; rows without a value are last."""
    number = text.partition("%")[0].partition(" ")[0]
    is_number = number.isascii() and number.isdecimal()
    return not text, not is_number, float(number) if is_number else 0.0, text.lower()
