"""How long the kernel may take over a write before the caller goes on without it. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Timeouts(NamedTuple):
    """Seconds. `steps` by the name of the file that is written: unbind, drivers_probe, driver_override, ..."""

    default: float = 30.0
    load: float = 60.0
    steps: Mapping[str, float] = {}

    def of(self, path: str) -> float:
        """For a write to `path`."""
        return self.steps.get(path.rpartition("/")[2], self.default)
