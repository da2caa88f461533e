"""A rule: the host that it is given, and the faults that it yields. May not do input or output."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeVar
from xml.etree.ElementTree import Element

from vfioctl.domain.document.reader import Domain
from vfioctl.domain.document.xml import MARK
from vfioctl.domain.model.finding import Severity
from vfioctl.inventory.model.machine import Processor
from vfioctl.placement.model.capacity import Capacity
from vfioctl.placement.model.claims import Owner

K = TypeVar("K", bound=Hashable)
_X86_PAGE = 2 << 20


class Fault(NamedTuple):
    """What is wrong with an element; an error unless it says otherwise."""

    element: Element
    reason: str
    remedy: str
    severity: Severity = Severity.ERROR


def warning(element: Element, reason: str, remedy: str) -> Fault:
    """Return a fault with which the domain works, but slower, or not everywhere."""
    return Fault(element, reason, remedy, Severity.WARNING)


def refused_before(
    domain: Domain, since: tuple[int, int], element: Element, reason: str, remedy: str
) -> Iterator[Fault]:
    """Yield what libvirt refuses before `since`, a warning if its version is not known. `reason` has {} for `since`."""
    if domain.version is None or domain.version < since:
        severity = Severity.WARNING if domain.version is None else Severity.ERROR
        yield Fault(element, reason.format(".".join(map(str, since))), remedy, severity)


def with_child(elements: Iterable[Element], path: str) -> Iterator[tuple[Element, Element]]:
    """Yield each element that has a child at this path, with the first such child."""
    return ((element, child) for element in elements if (child := element.find(path)) is not None)


def repeats(keys: Iterable[tuple[Element, K | None]]) -> Iterator[tuple[Element, K, Element]]:
    """Yield each element with a key that an earlier one has, the key, and the first one. None is no key."""
    first: dict[K, Element] = {}
    for element, key in keys:
        if key is not None and first.setdefault(key, element) is not element:
            yield element, key, first[key]


def more_than_one(domain: Domain, *paths: str, remedy: str = "keep one of them") -> Iterator[Fault]:
    """Yield the elements of each path but the first."""
    for path in paths:
        for extra in domain.all(path)[1:]:
            yield Fault(extra, f"there are two <{extra.tag}>", remedy)


@dataclass(frozen=True)
class HostFacts:
    """A host at one moment."""

    capacity: Capacity
    processor: Processor
    mdevs: frozenset[str] = frozenset()
    """The UUIDs of its mediated devices."""
    holders: Mapping[str, str] = field(default_factory=dict)
    """Devices that a process other than this domain's has open, each with that process, in words."""
    pinned: Mapping[int, str] = field(default_factory=dict)
    """CPUs to which other domains of libvirt are pinned, each with the domain; empty if libvirt was not asked."""
    images: Mapping[str, str] = field(default_factory=dict)
    """Disk images of this domain that another one of libvirt shares, each with how and with whom."""
    unread_images: Mapping[str, str] = field(default_factory=dict)
    """Disk images of which no base is known, each in words."""
    default_page: int | None = None
    """Bytes of a hugepage where no size is named; None if unknown."""
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

    @cached_property
    def huge_page(self) -> int | None:
        """`default_page`; on x86, that of a kernel whose command line names none. None if it is not known."""
        if self.default_page or self.processor.is_x86:
            return self.default_page or _X86_PAGE
        sizes = {pool.size for pool in self.capacity.hugepages}
        return sizes.pop() if len(sizes) == 1 else None


Rule = Callable[[Domain], Iterable[Fault]]
HostRule = Callable[[Domain, HostFacts], Iterable[Fault]]


def is_ours(domain: Domain) -> bool:
    """Return whether vfioctl built the domain: then `vfioctl domain start` and its hook bind the devices."""
    return domain.one(f"metadata/{MARK}") is not None


def is_own(domain: Domain, owner: Owner) -> bool:
    """Return whether a claim is that of the domain: its owner says so. A clone's metadata name its original's claim."""
    name = (domain.root.findtext("name") or "").strip()
    return owner == f"vm/{name}"
