"""By what rule vGPUs are placed on cards. May not do input or output."""

from __future__ import annotations

from enum import StrEnum


class Strategy(StrEnum):
    BINPACK = "binpack"
    """So that the largest types stay creatable for longest."""
    SPREAD = "spread"
    """Each on the card with the fewest vGPUs."""
    NUMA = "numa"
    """All on as few NUMA nodes as possible."""
