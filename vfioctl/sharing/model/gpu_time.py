"""GPU time as values: who used how much of which GPU, how that is known, and how far it may be off. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from enum import StrEnum
from typing import Any, NamedTuple

from vfioctl.core.frozen import value_class

OTHER = "(other)"
"""The name of all control groups that are not listed, and of processes whose group is not known."""


class Source(StrEnum):
    """How GPU time is known."""

    NVML = "nvml"
    """Samples of processes: percent of 1/6 s to 1 s in which a process had kernels on the GPU."""
    FDINFO = "fdinfo"
    """Counters of the driver for each DRM client, in nanoseconds or cycles of the GPU's engines."""
    LEASE = "lease"
    """The GPU is passed through: the host sees no use, only for how long who has it, by the clock."""


class Usage(NamedTuple):
    """GPU time of one control group on one GPU since the last measurement."""

    group: str
    """Its path; OTHER; with LEASE, the owner of the claim."""
    gpu: str
    source: Source
    seconds: float
    """By the GPU's busiest engine."""
    error: float
    """Seconds by which it may be more or less."""


Key = tuple[str, str, Source]
"""Group, GPU and source."""


def added(usages: Iterable[Usage]) -> dict[Key, tuple[float, float]]:
    """Return the sums of seconds and errors."""
    sums: dict[Key, tuple[float, float]] = {}
    for group, gpu, source, seconds, error in usages:
        before = sums.get((group, gpu, source), (0.0, 0.0))
        sums[group, gpu, source] = (before[0] + seconds, before[1] + error)
    return sums


@value_class
class Measurement:
    """What was measured in a time."""

    seconds: float
    """How long was measured."""
    usages: tuple[Usage, ...]
    weights: Mapping[str, int]
    problems: Mapping[str, str]
    """Why a GPU or a control group could not be measured, by its name."""
    excluded: Mapping[str, str]
    """Why a listed group is never frozen, by path."""
    would_freeze: tuple[str, ...] = ()
    """Groups that used more than their part while others wanted the GPU."""
    memory: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Bytes of a GPU's memory that a group had at the end, by group and GPU."""

    def share(self, usage: Usage) -> float | None:
        """Return the part of the measured GPU time of all groups on this GPU; None without any, and for a lease."""
        if usage.source is Source.LEASE:
            return None
        whole = sum(u.seconds for u in self.usages if u.gpu == usage.gpu and u.source is not Source.LEASE)
        return usage.seconds / whole if whole > 0 else None

    def quota(self, group: str) -> float | None:
        """Return the part that the weights give to a group; None without weight."""
        return quotas(self.weights).get(group)


def quotas(weights: Mapping[str, int]) -> dict[str, float]:
    """Return the part of each group: they add up to 1."""
    whole = sum(weights.values())
    return {group: weight / whole for group, weight in weights.items()}


def measurement_document(measurement: Measurement) -> dict[str, Any]:
    """Return a measurement as JSON has it."""
    return {
        "seconds": round(measurement.seconds, 3),
        "usages": [
            {
                "cgroup": usage.group,
                "gpu": usage.gpu,
                "source": str(usage.source),
                "gpu_seconds": round(usage.seconds, 6),
                "error_seconds": round(usage.error, 6),
                "share": _rounded(measurement.share(usage)),
                "quota": _rounded(measurement.quota(usage.group)),
            }
            for usage in measurement.usages
        ],
        "memory": [
            {"cgroup": group, "gpu": gpu, "bytes": size} for (group, gpu), size in sorted(measurement.memory.items())
        ],
        "would_freeze": list(measurement.would_freeze),
        "never_frozen": dict(measurement.excluded),
        "problems": dict(measurement.problems),
    }


def _rounded(part: float | None) -> float | None:
    return None if part is None else round(part, 4)
