"""The two releases of the kubelet that are played, by what a plugin can see. Every difference was observed on a kubelet
of that release, or is in its source."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Release:
    name: str
    asks_options: bool
    """GetDevicePluginOptions inside Register, before it answers; otherwise those of the request, and Register answers
    before the kubelet has connected to the plugin."""
    has_get: bool
    """PodResources has Get and GetAllocatableResources."""
    entry_per_device: bool
    """PodResources shows each device by itself; otherwise those of a resource and a NUMA node together."""
    keeps_cdi: bool
    checks_health: bool
    """A pod whose devices are not healthy is refused when it comes anew after a boot."""
    lists_active_only: bool
    """PodResources shows no pods that have ended."""
    removes_files: bool
    """A start removes all files beside the sockets, too."""

    def __str__(self) -> str:
        return self.name


V1_20 = Release(
    "1.20",
    asks_options=False,
    has_get=False,
    entry_per_device=False,
    keeps_cdi=False,
    checks_health=False,
    lists_active_only=False,
    removes_files=True,
)
V1_36 = Release(
    "1.36",
    asks_options=True,
    has_get=True,
    entry_per_device=True,
    keeps_cdi=True,
    checks_health=True,
    lists_active_only=True,
    removes_files=False,
)
RELEASES = (V1_20, V1_36)
