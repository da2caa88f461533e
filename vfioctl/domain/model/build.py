"""The documents of `vfioctl domain build --json` and `diff --json`. May not do input or output."""

from __future__ import annotations

from vfioctl.core.frozen import record_class


@record_class
class BuildChoice:
    """One thing that was chosen."""

    what: str
    chosen: str
    why: str
    excluded: tuple[str, ...]
    """what could not be chosen, each with the reason"""
    weaker: str
    """what is weaker than asked for, or than it could be; empty if nothing is"""


@record_class
class BuildDevice:
    """A device that the guest gets."""

    device: str
    """the address of a function, or the UUID of a mediated device"""
    alias: str
    numa_node: int | None
    """the host's node; null if it is not known"""
    cell: int | None
    """the guest's NUMA node; null if it is on the guest's own root"""


@record_class
class BuildDocument:
    """A domain that was built, and not defined."""

    name: str
    template: str
    claim: str
    vcpus: int
    memory_bytes: int
    pins: tuple[int, ...]
    """the host's CPU of each vCPU; empty if they are not pinned"""
    devices: tuple[BuildDevice, ...]
    choices: tuple[BuildChoice, ...]
    xml: str


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
