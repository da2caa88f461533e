"""Chooses devices, CPUs and hugepages for a claim, and explains the choice. Pure."""

from __future__ import annotations

from vfioctl.claims.model.capacity import Capacity
from vfioctl.claims.model.placement import Placement
from vfioctl.claims.model.request import ClaimRequest


def place(request: ClaimRequest, capacity: Capacity) -> Placement:
    """Return what the claim gets. Raises NoCapacity with the reason for each device, UnknownDevice."""
    raise NotImplementedError
