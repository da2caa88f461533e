"""The claims that containers get devices of, as a protocol. May not do input or output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from vfioctl.claims.model.claim import Claim


class Claims(Protocol):
    """The methods of `ClaimsApi` that the room of each format uses."""

    def claims(self, *, live_only: bool = True) -> tuple[Claim, ...]: ...

    def claim(self, name: str) -> Claim:
        """Raises BadSpec."""
