"""The documents of dry runs: what creating and releasing claims would do. May not do input or output."""

from __future__ import annotations

from pydantic import Field

from vfioctl.core.change import Plan
from vfioctl.core.value import Value
from vfioctl.placement.model.placement import PlacementDocument


class CreatePreview(Value):
    """The document of `vfioctl claim create --dry-run --json`."""

    placement: PlacementDocument
    plan: Plan | None = Field(description="the plan that would be applied; null if nothing has to be changed")
    claim: str | None = Field(description="the claim that has the request's key already, and would be returned")


class ClaimRelease(Value):
    """What releasing one claim would do."""

    id: str
    owner: str
    state: str = Field(description="the claim's state now; one that has ended stays as it is")
    plan: Plan | None = Field(description="the plan that would be applied; null if nothing has to be changed")


class ReleasePreview(Value):
    """The document of `vfioctl claim release --dry-run --json`."""

    claims: tuple[ClaimRelease, ...]
