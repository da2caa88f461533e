"""What CDI files and bundles ask of the ledger of claims."""

from __future__ import annotations

from typing import Protocol

from vfioctl.claims.model.claim import Claim
from vfioctl.errors import BadSpec


class Claims(Protocol):
    """The methods of `ClaimsApi` that they use."""

    def claims(self, *, live_only: bool = False) -> tuple[Claim, ...]: ...

    def claim(self, name: str, /) -> Claim:
        """Raises BadSpec."""
        ...


class NoClaims:
    """A ledger without claims."""

    def claims(self, *, live_only: bool = False) -> tuple[Claim, ...]:
        del live_only
        return ()

    def claim(self, name: str, /) -> Claim:
        raise BadSpec(f"there is no claim {name[:60]!r}")
