"""The quotas of the settings: how many GPUs an owner, or all claims with a label, may have. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from vfioctl.placement.model.capacity import Capacity
from vfioctl.placement.model.owner import Owner
from vfioctl.placement.model.request import ClaimRequest


def over_quota(request: ClaimRequest, capacity: Capacity, gpus: int) -> str:
    """Return which quota so many more GPUs would exceed; empty if none."""
    for name, has in _counted(request, capacity):
        limit = _limit(name, capacity.settings.quotas)
        if limit is not None and has + gpus > limit:
            return f"over the quota of {name}: {limit} GPU{'s' * (limit != 1)}, of which it has {has}"
    return ""


def _counted(request: ClaimRequest, capacity: Capacity) -> Iterator[tuple[str, int]]:
    taken = capacity.taken
    yield request.owner, taken.owners.get(Owner(request.owner), 0)
    for label, value in sorted(request.labels.items()):
        yield f"{label}={value}", taken.labels.get((label, value), 0)


def _limit(name: str, quotas: Mapping[str, int]) -> int | None:
    """Return the quota of a name: its own, or the longest with a `*` that its name begins with."""
    if name in quotas:
        return quotas[name]
    fitting = [quota for quota in quotas if quota.endswith("*") and name.startswith(quota[:-1])]
    return quotas[max(fitting, key=len)] if fitting else None
