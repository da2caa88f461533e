"""How busy a GPU is. A frozen value: may not do input or output."""

from __future__ import annotations

from vfioctl.core.frozen import value_class


@value_class
class Usage:
    """How busy a GPU is, as NVML or its DRM driver reports it; None where it does not."""

    source: str
    """nvml, or the DRM driver"""
    utilisation_percent: int | None = None
    temperature_celsius: int | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
