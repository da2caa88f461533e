"""Renders what a boot restores."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.text import Text

from vfioctl.console.columns import Column, note_lines, table
from vfioctl.persist.model.persistent import Persistent, State

_COLUMNS = (
    Column("DEVICE"),
    Column("AT BOOT"),
    Column("NOW"),
    Column("BY"),
    Column("FILE", optional=True),
)
_STYLES = {State.FAILED: "red", State.ABSENT: "yellow", State.MOVED: "yellow"}


def persistent_page(entries: Sequence[Persistent], switched_off: str, outdated: str, *, width: int) -> RenderableType:
    """The list, with a note for each entry that is not as a boot would leave it. `outdated`: why the initramfs is.
    `width`: columns of the terminal."""
    rows = [(e.name, e.goal, _state(e), e.owner, e.file) for e in entries]
    notes = [f"{entry.name}: {entry.why}" for entry in entries if entry.why]
    off = [f"Restoring is switched off: {switched_off}."] if switched_off else []
    old = [f"The initramfs is outdated: {outdated}"] if outdated else []
    return Stack(*table(_COLUMNS, rows, width), *note_lines([*off, *notes, *old]))


def _state(entry: Persistent) -> Text:
    text = f"{entry.state}: {entry.now}" if entry.now else entry.state
    return Text(text, style=_STYLES.get(entry.state, ""))
