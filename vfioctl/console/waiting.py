"""`--wait`: parses the duration and shows the current holders. May not wait itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, Self

from vfioctl.console.output import notes_wanted, say, settle, width
from vfioctl.units import parse_duration

if TYPE_CHECKING:
    from rich.live import Live


class Holder(Protocol):
    """What this module shows of `vfioctl.inventory.model.holders.Holder`."""

    @property
    def address(self) -> object: ...
    @property
    def words(self) -> str: ...


def seconds_in(text: str | None) -> float:
    """Return the seconds in a duration, see `parse_duration`; 0 for None. Raises BadSpec."""
    return 0.0 if text is None else parse_duration(text)


class Board:
    """The list of holders on stderr: redrawn in place on a terminal that can, otherwise written again when it changes.

    A context manager that erases the list at the end. `show` is the callback of the apis that wait."""

    def __init__(self) -> None:
        self._live: Live | None = None
        self._told: tuple[str, ...] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def show(self, holders: Sequence[Holder], seconds_left: float) -> None:
        """Show the holders and the seconds that are left until the timeout."""
        if not notes_wanted():
            return
        lines = tuple(f"{holder.address} is held by {holder.words}" for holder in holders)
        if sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            heading = f"Waiting up to {seconds_left:.0f} s for them to release it (Ctrl-C stops waiting):"
            self._redraw([heading, *lines])
        elif lines != self._told:
            for line in lines:
                say(f"waiting for up to {seconds_left:.0f} s: {line}")
        self._told = lines

    def _redraw(self, lines: Sequence[str]) -> None:
        from rich.console import Group
        from rich.live import Live
        from rich.text import Text

        from vfioctl.console.screen import Screen

        if self._live is None:
            settle()
            self._live = Live(console=Screen(sys.stderr, width(sys.stderr)), transient=True, auto_refresh=False)
            self._live.start()
        self._live.update(Group(*map(Text, lines)), refresh=True)
