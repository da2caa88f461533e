"""What making or releasing a claim has come to. May not do input or output."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from vfioctl.claims.model.claim import Claim

if TYPE_CHECKING:
    from vfioctl.claims.lifecycle.selection import Choosing
    from vfioctl.core.change import Outcome


class Claimed(NamedTuple):
    """A claim, and the outcome of the change that was made for it; None if nothing had to be changed."""

    claim: Claim
    outcome: Outcome | None = None
    choosing: Choosing | None = None
    """Has why these devices were chosen; None for a claim that was there already."""
    problem: str = ""
    """Why the CDI files could not be written again, if the configuration asks for that."""
