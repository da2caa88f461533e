"""How long GPUs are passed through, by the clock: the host sees no use of them. May not do I/O."""

from __future__ import annotations

from collections.abc import Mapping

from vfioctl.sharing.model.gpu_time import Source, Usage


class LeaseTime:
    """The leases seen so far."""

    def __init__(self) -> None:
        self._at: float | None = None
        self._owners: Mapping[str, str] = {}

    def take(self, owners: Mapping[str, str], now: float) -> list[Usage]:
        """Return the time since the last call of each GPU. `owners`: who has a GPU, by its address. A lease that began
        or ended since may be off by all of that time."""
        elapsed = 0.0 if self._at is None else now - self._at
        before, self._owners, self._at = self._owners, owners, now
        kept = [
            Usage(owner, gpu, Source.LEASE, elapsed, 0.0) for gpu, owner in owners.items() if before.get(gpu) == owner
        ]
        changed = [(gpu, owner) for gpu, owner in owners.items() if before.get(gpu) != owner]
        return kept + [Usage(owner, gpu, Source.LEASE, 0.0, elapsed) for gpu, owner in changed]
