"""What making or releasing a claim has come to. May not do input or output."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from vfioctl.claims.model.claim import Claim

if TYPE_CHECKING:
    from vfioctl.core.change import Outcome
    from vfioctl.inventory.model.functions import Inventory
    from vfioctl.placement.model.placement import Placement


class Claimed(NamedTuple):
    """A claim, and the outcome of the change that was made for it; None if nothing had to be changed."""

    claim: Claim
    outcome: Outcome | None = None
    placement: Placement | None = None
    """Why these devices were chosen, on the host of `inventory`; None for a claim that existed already."""
    inventory: Inventory | None = None
    problem: str = ""
    """Why the CDI files could not be written again, if the configuration asks for that."""
