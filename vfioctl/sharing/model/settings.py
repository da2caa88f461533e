"""The table `[sharing]` of the configuration: which control groups share GPUs, with which weights. May not do I/O.

::

    [sharing]
    poll = "0.5s"
    throttle = true

    [[sharing.groups]]
    path = "/user.slice/train.slice"
    weight = 300
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, ClassVar

from vfioctl.core.frozen import record_class
from vfioctl.core.limits import FORBID, Checked, Strict, Whole
from vfioctl.errors import BadSpec
from vfioctl.kernel.protocol import PCI_ADDRESS
from vfioctl.serving.address import Listen
from vfioctl.units import parse_duration

SHORTEST_POLL = 1 / 6
"""Seconds: NVML samples at most six times a second (nvmlDeviceGetProcessUtilization)."""
MOST_GROUPS = 256
_LONGEST_POLL, _SHORTEST_RUN, _LONGEST_RUN = 1.0, 0.2, 60.0
_LONGEST_PATH = 1024


def _path(text: str) -> str:
    names = text.split("/")[1:]
    if not (text.startswith("/") and all(names) and text.isprintable() and len(text) <= _LONGEST_PATH):
        raise ValueError("write the path of a control group below the root, such as /user.slice/train.slice")
    if {".", ".."} & set(names):
        raise ValueError("the path of a control group has no . and no ..")
    return text


def _address(text: str) -> str:
    if not PCI_ADDRESS.fullmatch(text):
        raise ValueError(f"{text[:60]!r} is no address of a GPU: write it as 0000:41:00.0")
    return text


def _seconds(text: str, least: float, most: float) -> str:
    try:
        seconds = parse_duration(text)
    except BadSpec as error:
        raise ValueError(error.message) from None
    if not least <= seconds <= most:
        raise ValueError(f"a duration from {least:.3g}s to {most:g}s is needed")
    return text


def _poll(text: str) -> str:
    return _seconds(text, SHORTEST_POLL, _LONGEST_POLL)


def _run(text: str) -> str:
    return _seconds(text, _SHORTEST_RUN, _LONGEST_RUN)


@record_class
class GroupSettings:
    """One control group that shares GPUs with the others."""

    __pydantic_config__: ClassVar = FORBID

    path: Annotated[str, Checked(_path)]
    """Its path below the root of the hierarchy (version 2), as in /proc/PID/cgroup; what is below it counts as it."""
    weight: Annotated[int, Whole(1, 10_000, strict=True)] = 100
    """Its part of GPU time, relative to the others, as cpu.weight is."""


@record_class
class SharingSettings:
    """The settings of shared GPU time."""

    __pydantic_config__: ClassVar = FORBID

    poll: Annotated[str, Checked(_poll)] = "0.5s"
    """How often GPU time is measured, and control groups are frozen or thawed: 1/6 s to 1 s."""
    throttle: Annotated[bool, Strict()] = False
    """Whether control groups are frozen that use more than their part while others want the GPU."""
    quantum: Annotated[str, Checked(_run)] = "2s"
    """GPU time that a group of mean weight may use before the others have their turn."""
    min_run: Annotated[str, Checked(_run)] = "1s"
    """How long a group runs at least before it is frozen again."""
    gpus: tuple[Annotated[str, Checked(_address)], ...] = ()
    """Addresses of the GPUs; empty for all."""
    groups: tuple[GroupSettings, ...] = ()
    """Empty to measure every control group, and to throttle none."""
    listen: Listen = "127.0.0.1:9821"
    """Where /metrics and /healthz are served; empty for nowhere."""
    container_metrics: Annotated[bool, Strict()] = False
    """Whether /metrics also has each container of a pod by itself, with the names and labels of gpu-manager."""

    def __post_init__(self) -> None:
        if len(self.groups) > MOST_GROUPS:
            raise ValueError(f"groups: at most {MOST_GROUPS}")
        if self.container_metrics and self.groups:
            raise ValueError("container_metrics: groups must be empty, as time is counted by listed groups otherwise")
        paths = sorted(f"{group.path}/" for group in self.groups)  # what is below a group comes next to it
        for one, following in pairwise(paths):
            if following.startswith(one):
                raise ValueError(f"groups: {one[:-1]} is there twice, or has another one below it")
        if self.seconds("min_run") < self.seconds("poll"):
            raise ValueError("min_run: it must be at least as long as poll")

    @property
    def weights(self) -> dict[str, int]:
        """The weight of each group, by path."""
        return {group.path: group.weight for group in self.groups}

    def seconds(self, name: str) -> float:
        """Return one of the durations."""
        return parse_duration(getattr(self, name))
