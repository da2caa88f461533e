"""The facts of a PF that a plan for its VFs needs. May not do input or output."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PhysicalFunction:
    """Facts of a PF that are not in the inventory."""

    total: int
    autoprobe: str
    definition: str
    """The text of vfioctl's definition of its VFs; empty when there is none."""
    gpu_instances: bool = False
    """Whether MIG is enabled on this GPU, or, if that is unknown, on any NVIDIA GPU of the host."""
