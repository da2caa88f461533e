"""The documents of `vfioctl domain start` and `stop`. May not do input or output."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from vfioctl.core.change import Plan
from vfioctl.core.value import Value
from vfioctl.placement.model.placement import PlacementDocument


class StartDocument(Value):
    """The document of `vfioctl domain start --json`."""

    domain: str
    uri: str
    result: Literal["started", "runs already"]
    claims: tuple[str, ...] = Field(description="the ids of the claims that were made, which end with the domain")
    kept: tuple[str, ...] = Field(description="the ids of the claims that its owner had before, which stay")


class StartPreview(Value):
    """The document of `vfioctl domain start --dry-run --json`."""

    domain: str
    uri: str
    result: Literal["would start", "runs already"]
    kept: tuple[str, ...] = Field(description="the ids of the claims of its owner, which serve it")
    placement: PlacementDocument | None = Field(description="what would be claimed; null if its owner has it all")
    plan: Plan | None = Field(description="the plan that would be applied for it; null if nothing has to be changed")
    over: tuple[str, ...] = Field(description="the ids of claims made for a run that is over: they would be released")
    before: tuple[Plan, ...] = Field(
        description="the plans that would be applied first: for those, and for what was bound before a reboot"
    )
    managed: tuple[str, ...] = Field(description="functions that would be claimed, and that libvirt itself binds")


class StopDocument(Value):
    """The document of `vfioctl domain stop --json`, and with `--dry-run`."""

    domain: str
    uri: str
    result: Literal["stopped", "does not run", "would stop"]
    claims: tuple[str, ...] = Field(description="the ids of the claims that were, or would be, given back")
