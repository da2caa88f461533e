"""What a domain needs of its host before it starts: devices, CPUs and hugepages. May not do input or output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vfioctl.claims.model.passthrough_devices import managed_devices_of, subject_of
from vfioctl.domain.document.memory import hugepages_by_node
from vfioctl.domain.document.reader import read_domain
from vfioctl.domain.model.owner import owner_of
from vfioctl.inventory.model.values import Subject
from vfioctl.placement.model.claims import Hugepages

if TYPE_CHECKING:
    from vfioctl.placement.model.claims import Owner


@dataclass(frozen=True)
class Needs:
    """What one domain needs, read from its document."""

    name: str
    ours: bool
    """Whether it has vfioctl's mark, also if that is the copy of another domain's."""
    bound: tuple[Subject, ...]
    """Devices that must be on VFIO, or exist, before libvirt starts it."""
    managed: tuple[Subject, ...]
    """Functions that libvirt binds to VFIO itself (managed='yes')."""
    cpus: tuple[int, ...]
    """CPUs that one vCPU has for itself. Those that several threads share are nobody's own."""
    hugepages: tuple[Hugepages, ...]
    """Hugepages of which the document says the node: one node."""

    @property
    def devices(self) -> tuple[Subject, ...]:
        return (*self.bound, *self.managed)

    @property
    def is_anything(self) -> bool:
        return bool(self.devices or self.cpus or self.hugepages)

    @property
    def owner(self) -> Owner:
        """The owner of its claims. Raises BadSpec for a name that no owner can have."""
        return owner_of(self.name)


def needs_nothing(name: str) -> Needs:
    """Return the needs of a domain whose document is gone."""
    return Needs(name, ours=False, bound=(), managed=(), cpus=(), hugepages=())


def needs_of(xml: str | bytes) -> Needs:
    """Return what a domain's document needs. Raises BadDocument."""
    domain = read_domain(xml)
    managed = set(managed_devices_of(domain.root))
    return Needs(
        name=domain.name,
        ours=domain.mark.is_there,
        bound=tuple(subject_of(name) for name in domain.host_devices if name not in managed),
        managed=tuple(subject_of(name) for name in domain.host_devices if name in managed),
        cpus=domain.exclusive_cpus,
        hugepages=hugepages_by_node(domain),
    )
