"""The document of `vfioctl domain diff --json`. May not do input or output."""

from __future__ import annotations

from vfioctl.core.frozen import record_class


@record_class
class ComparedValue:
    """A value that is not what vfioctl would build."""

    path: str
    """where: `/domain/cputune/vcpupin[vcpu=3]/@cpuset`"""
    found: str | None
    """null: it is not there"""
    built: str | None
    """null: it would not be there"""


@record_class
class Comparison:
    """A domain, compared with what vfioctl would build for its devices."""

    name: str
    running: bool
    """whether it is compared as it runs, or as it is defined"""
    differences: tuple[ComparedValue, ...]
