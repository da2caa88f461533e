"""The time that a call has. May not do input or output."""

from __future__ import annotations

import time


class Deadline:
    """A moment after which a call is cancelled: `Deadline(60).is_over` is a `vfioctl.core.events.Cancel`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds, 0 when it is over."""
        return max(0.0, self._end - time.monotonic())

    def is_over(self) -> bool:
        return self.left == 0
