"""The strategies for placing vGPUs on cards. May not do input or output."""

from __future__ import annotations

from enum import StrEnum


class Strategy(StrEnum):
    BINPACK = "binpack"
    """Keep the largest types creatable for as long as possible."""
    SPREAD = "spread"
    """Place each vGPU on the card with the fewest vGPUs."""
    NUMA = "numa"
    """Place all vGPUs on as few NUMA nodes as possible."""
