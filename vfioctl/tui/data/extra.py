"""What is read only for the screen that shows it. Its readings are kept until they are taken."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from vfioctl.errors import VfioctlError

if TYPE_CHECKING:
    from vfioctl.host import Host

T = TypeVar("T")
_REST = 3.0
"""How many times as long as a reading took no other one follows it, unless it is asked for."""


class Found(NamedTuple, Generic[T]):
    """What was read."""

    value: T
    problem: str = ""
    """Why it could not be read; empty if it was."""


class Extra(Generic[T]):
    """Something that is read when it is asked for. `read` may raise VfioctlError: the value is `empty` then.

    `is_live`: whether it is also read when the host has changed while its screen is shown."""

    def __init__(self, read: Callable[[Host], T], empty: T, *, is_live: bool = False) -> None:
        self._read, self._empty, self.is_live = read, empty, is_live
        self.due: float | None = None
        """When it is to be read, by the monotonic clock; None if nobody wants that."""
        self._rested = 0.0
        self._found: Found[T] | None = None

    def ask(self) -> None:
        """Have it read at once."""
        self.due = 0.0

    def changed(self) -> None:
        """Have it read soon, as the host has changed: where reading takes long, not again and again."""
        self.due = self._rested if self.due is None else self.due

    def begin(self) -> None:
        """Want it no longer: it is about to be read."""
        self.due = None

    def read(self, host: Host) -> Found[T]:
        """Read it, in the thread that reads the host."""
        began = time.monotonic()
        try:
            found = Found(self._read(host))
        except VfioctlError as error:
            found = Found(self._empty, error.message)
        ended = time.monotonic()
        self._rested = ended + _REST * (ended - began)
        return found

    def keep(self, found: Found[T]) -> None:
        """Keep what was read until it is taken."""
        self._found = found

    def take(self) -> Found[T] | None:
        """Return what was read since it was taken last; None if nothing was."""
        found, self._found = self._found, None
        return found
