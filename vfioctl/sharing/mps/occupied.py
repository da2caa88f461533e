"""Which GPUs an MPS daemon keeps from claims. May not change anything, nor import much: each claim asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from vfioctl.inventory.model.values import PciAddress
from vfioctl.placement.model.share import Enforcement
from vfioctl.sharing.mps.told import read_told

if TYPE_CHECKING:
    from vfioctl.placement.model.request import ClaimRequest
    from vfioctl.session import Session
    from vfioctl.sharing.mps.daemon import Told


def occupied(session: Session, request: ClaimRequest) -> Mapping[PciAddress, str]:
    """Return why GPUs cannot serve a request: a daemon serves shares only, and those of all claims or of one."""
    reasons = ((told.gpu, _why_not(told, request)) for told in read_told(session.kernel)[0])
    return {gpu: f"{why}: vfioctl mps stop {gpu}" for gpu, why in reasons if why}


def _why_not(told: Told, request: ClaimRequest) -> str:
    if not request.is_share:
        return "it has an MPS daemon, for shares"
    if told.claim:
        return f"its MPS daemon is for claim {told.claim} alone"
    return "its MPS daemon limits each client" if request.enforce == Enforcement.NONE else ""
