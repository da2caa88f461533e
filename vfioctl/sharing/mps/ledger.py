"""The shares that the ledger of claims has. May not change it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vfioctl.claims.api import ClaimsApi
from vfioctl.inventory.model.values import PciAddress
from vfioctl.placement.model.share import Enforcement
from vfioctl.sharing.mps.share import MpsShare

if TYPE_CHECKING:
    from vfioctl.claims.model.claim import Claim
    from vfioctl.session import Session

_BY_MPS = ("", Enforcement.MPS)
"""What a claim may have asked for: the strongest that the host has, or MPS."""


def shares_of(session: Session) -> tuple[MpsShare, ...]:
    """Return the shares of GPUs that live claims have now, whole GPUs too, and that MPS may enforce.

    Raises StoreDamaged."""
    return tuple(share for claim in reversed(ClaimsApi(session).claims()) for share in mps_shares(claim))


def mps_shares(claim: Claim) -> tuple[MpsShare, ...]:
    """Return the shares of one claim that MPS may enforce; a whole GPU is one without limits."""
    return tuple(
        MpsShare(claim.id, claim.owner, PciAddress(share.address), 0 if share.is_whole else share.cores, share.memory)
        for share in claim.shares
        if share.enforce in _BY_MPS
    )
