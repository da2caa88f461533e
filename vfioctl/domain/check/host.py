"""What rules need to know of a host, and the type of these rules. May not do input or output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from vfioctl.claims.model.capacity import Capacity
from vfioctl.claims.model.owner import Owner
from vfioctl.domain.check.domain import Domain
from vfioctl.domain.check.fault import Fault
from vfioctl.domain.xml import METADATA
from vfioctl.inventory.model.processor import Processor


@dataclass(frozen=True)
class HostFacts:
    """A host at one moment."""

    capacity: Capacity
    processor: Processor
    mdevs: frozenset[str] = frozenset()
    """The UUIDs of its mediated devices."""
    holders: Mapping[str, str] = field(default_factory=dict)
    """Devices that somebody has open, other than this domain: each with who, in words."""
    runs: bool = False
    """Whether the domain runs now: what it has is not free, and that is right."""

    @cached_property
    def cpus(self) -> frozenset[int]:
        """The CPUs that are online; empty if they are not known."""
        return frozenset(self.capacity.topology.core_of)

    @cached_property
    def nodes(self) -> Mapping[int, int | None]:
        """The memory of each NUMA node in bytes; empty if they are not known, or the kernel is one without NUMA."""
        return {node.id: node.memory_bytes for node in self.capacity.inventory.numa_nodes}


HostRule = Callable[[Domain, HostFacts], Iterable[Fault]]


def is_ours(domain: Domain) -> bool:
    """Return whether vfioctl built the domain: then `vfioctl domain start` and its hook bind the devices."""
    return domain.one(f"metadata/{{{METADATA}}}allocation") is not None


def is_own(domain: Domain, claim: str, owner: Owner) -> bool:
    """Return whether a claim is that of the domain: named in its metadata, or owned by a VM with its name."""
    name = (domain.root.findtext("name") or "").strip()
    named = {each.get("id") for each in domain.all(f"metadata/{{{METADATA}}}allocation")}
    return claim in named or owner == f"vm/{name}"
