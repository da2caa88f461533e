"""The document of `vfioctl domain build --json`. May not do input or output."""

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
