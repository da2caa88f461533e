"""A change that a thread is making: its events so far, how it can be cancelled, and how it ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from vfioctl.console.failure import lines
from vfioctl.errors import StalePlan, VfioctlError
from vfioctl.tui.data.threads import start

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vfioctl.core.events import Cancel, Progress, StepEvent

Apply = Callable[["Progress", "Cancel"], "Sequence[RenderableType]"]
"""Makes a change, and returns the page about its outcome."""


class Change:
    """One change. Only its thread writes here; everybody may read."""

    def __init__(self, title: str, apply: Apply) -> None:
        self.title, self._apply = title, apply
        self.events: list[StepEvent] = []
        self.began = time.monotonic()
        self.ended: float | None = None
        self.pages: Sequence[RenderableType] = ()
        """What the change came to; empty if it failed."""
        self.failure: tuple[str, ...] = ()
        """The lines of the failure, as the command line prints them."""
        self.is_stale = False
        """Whether it was refused because the host has changed since it was planned."""
        self._cancelled = threading.Event()
        self._told: Callable[[], None] = lambda: None

    def start(self, told: Callable[[], None]) -> None:
        """Start it in a thread. `told`: called there at each event and at the end."""
        self._told = told
        start("change", self._run)

    def cancel(self) -> None:
        """Roll back after the step that is under way."""
        self._cancelled.set()

    @property
    def is_cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self._cancelled.is_set()

    @property
    def is_done(self) -> bool:
        """Whether it has ended."""
        return self.ended is not None

    def _hear(self, event: StepEvent) -> None:
        self.events.append(event)
        self._told()

    def _run(self) -> None:
        try:
            self.pages = self._apply(self._hear, self._cancelled.is_set)
        except VfioctlError as error:
            self.failure, self.is_stale = failed(error), isinstance(error, StalePlan)
        except Exception as error:
            self.failure = (f"vfioctl: this is a bug: {type(error).__name__}: {error}",)
            raise
        finally:
            self.ended = time.monotonic()
            self._told()


def failed(error: VfioctlError) -> tuple[str, ...]:
    """Return the lines of a failure, as the command line prints them, with the command to run next on this host."""
    from vfioctl.console.choice import on_this_host

    error.next_command = on_this_host(error.next_command)
    return tuple(lines(error))
