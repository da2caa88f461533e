"""Renders the list of devices in CDI files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.text import Text

from vfioctl.claims.cdi.files import CdiFileFound
from vfioctl.console.columns import Column, note_lines, table

_COLUMNS = (Column("DEVICE"), Column("NODES"), Column("WRITTEN BY"), Column("FILE"))


def cdi_table(files: Sequence[CdiFileFound], *, width: int) -> RenderableType:
    """The devices, by file. `width`: of the terminal, in columns."""
    rows = [row for file in files for row in _rows(file)]
    lines = table(_COLUMNS, rows, width) if rows else [Text("No CDI file defines a device.")]
    return Stack(*lines, *note_lines(f"{file.path}: {problem}" for file in files for problem in file.problems))


def _rows(file: CdiFileFound) -> Iterator[tuple[str, str, str, str]]:
    for name, nodes in file.devices.items():
        yield f"{file.kind}={name}", " ".join(nodes) or "-", "vfioctl" if file.ours else "another program", file.path
