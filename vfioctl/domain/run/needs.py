"""What a domain needs of its host before it starts: devices, CPUs and hugepages. May not do input or output."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vfioctl.claims.model.passthrough_devices import devices_of, managed_devices_of, subject_of
from vfioctl.domain.check.rules.domain import Domain
from vfioctl.domain.check.rules.host_memory import backed
from vfioctl.domain.document.definition import read_definition
from vfioctl.domain.document.xml import parse
from vfioctl.errors import BadSpec
from vfioctl.inventory.model.values import Subject, parse_cpu_list
from vfioctl.placement.model.owner import Owner
from vfioctl.placement.model.taken import Hugepages

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


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
        try:
            return Owner(f"vm/{self.name}")
        except BadSpec as error:
            raise BadSpec(
                f"domain {self.name!r} can hold no claim: no owner is called vm/{self.name[:60]}", hint=error.hint
            ) from None


def is_owner(name: str) -> bool:
    """Return whether a domain of this name can hold claims."""
    try:
        return bool(Owner(f"vm/{name}"))
    except BadSpec:
        return False


def needs_nothing(name: str) -> Needs:
    """Return the needs of a domain whose document is gone."""
    return Needs(name, ours=False, bound=(), managed=(), cpus=(), hugepages=())


def needs_of(xml: str | bytes) -> Needs:
    """Return what a domain's document needs. Raises BadDocument."""
    document, definition = parse(xml), read_definition(xml)
    managed = set(managed_devices_of(document.root))
    named = devices_of(document.root)
    return Needs(
        name=definition.name,
        ours=definition.is_marked,
        bound=tuple(subject_of(each) for each in named if each not in managed),
        managed=tuple(subject_of(each) for each in named if each in managed),
        cpus=tuple(sorted(_own(definition.pins))),
        hugepages=tuple(_hugepages(Domain(document))),
    )


def _own(pins: Sequence[tuple[int, str]]) -> Iterator[int]:
    """Yield the CPUs to which exactly one vCPU is pinned, and to no other."""
    threads: Counter[int] = Counter()
    alone: set[int] = set()
    for _, text in pins:
        cpus = parse_cpu_list(text)
        threads.update(cpus)
        alone.update(cpus if len(cpus) == 1 else ())
    yield from (cpu for cpu in alone if threads[cpu] == 1)


def _hugepages(domain: Domain) -> Iterator[Hugepages]:
    pages: Counter[tuple[int, int]] = Counter()
    for _, size, nodes, memory in backed(domain):
        if len(nodes) == 1:
            pages[next(iter(nodes)), size] += -(-memory // size)
    yield from (Hugepages(node, size, number) for (node, size), number in sorted(pages.items()))
