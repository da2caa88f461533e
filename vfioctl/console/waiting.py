"""`--wait`: parses the duration and shows the current holders. May not wait itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self

from vfioctl.console.output import notes_wanted, say, width
from vfioctl.units import parse_duration

if TYPE_CHECKING:
    from rich.live import Live


class Holder(Protocol):
    """The fields of `vfioctl.inventory.model.holders.Holder` that this module shows."""

    @property
    def address(self) -> Any: ...
    @property
    def kind(self) -> Any: ...
    @property
    def name(self) -> str: ...
    @property
    def pid(self) -> int | None: ...
    @property
    def user(self) -> str | None: ...
    @property
    def guest(self) -> str | None: ...
    @property
    def container(self) -> str | None: ...
    @property
    def unit(self) -> str | None: ...
    @property
    def path(self) -> str: ...


def seconds_in(text: str | None) -> float:
    """Return the seconds in a duration, see `parse_duration`; 0 for None. Raises BadSpec."""
    return 0.0 if text is None else parse_duration(text)


class Board:
    """The list of holders on stderr: redrawn in place on a terminal that can, otherwise written again when it changes.

    A context manager that erases the list at the end. `show` is the callback of the apis that wait.
    """

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
        lines = tuple(_lines(holders))
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
            self._live = Live(console=Screen(sys.stderr, width(sys.stderr)), transient=True, auto_refresh=False)
            self._live.start()
        self._live.update(Group(*map(Text, lines)), refresh=True)


def _lines(holders: Sequence[Holder]) -> Iterator[str]:
    for holder in holders:
        pid = f"process {holder.pid}" if holder.pid is not None else str(holder.kind)
        parts = (holder.user, holder.guest or holder.container or holder.unit)
        who = ", ".join(str(part) for part in (pid, *parts) if part)
        yield f"{holder.address} is held by {holder.name} ({who}): {holder.path}".rstrip(": ")
