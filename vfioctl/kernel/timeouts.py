"""How long the caller waits for a write to the kernel. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Timeouts(NamedTuple):
    """Timeouts in seconds. `steps`: by the name of the file: unbind, drivers_probe, driver_override, ..."""

    default: float = 30.0
    load: float = 60.0
    steps: Mapping[str, float] = {}

    def of(self, path: str) -> float:
        """The timeout for a write to `path`."""
        return self.steps.get(path.rpartition("/")[2], self.default)
