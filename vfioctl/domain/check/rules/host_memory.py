"""Rules about NUMA nodes, memory and hugepages of the host. May not do input or output."""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree.ElementTree import Element

from vfioctl.domain.check.rules.fault import Fault, warning
from vfioctl.domain.check.rules.host import HostFacts
from vfioctl.domain.document.memory import backed
from vfioctl.domain.document.reader import Domain
from vfioctl.domain.document.values import cpuset, number, shown
from vfioctl.units import exact_size

_NORMAL = 4096
_AT_BOOT = 1 << 30
"""The least size of pages that a running kernel hardly finds: memory is too fragmented."""
_STRICT = ("strict", None)


def nodes(domain: Domain, host: HostFacts) -> Iterator[Fault]:
    for element in (*domain.all("numatune/memory"), *domain.all("numatune/memnode")):
        if element.get("placement") == "auto":  # then libvirt ignores the nodeset
            continue
        named = cpuset(element.get("nodeset")) or frozenset()
        if host.nodes and (absent := named - host.nodes.keys()):
            reason = f"this host has no NUMA node {shown(absent)}"
            yield Fault(element, reason, f"nodes of {shown(frozenset(host.nodes))}")


def fits(domain: Domain, host: HostFacts) -> Iterator[Fault]:
    """Memory that is strictly on some nodes is on them; that of a guest with devices of the host is all there."""
    needs: dict[frozenset[int], int] = {}
    where: dict[frozenset[int], Element] = {}
    for element, memory in _strict(domain):
        named = cpuset(element.get("nodeset")) or frozenset()
        if named <= host.nodes.keys():
            needs[named] = needs.get(named, 0) + memory
            where[named] = element
    for named, needed in needs.items():
        yield from _fits(where[named], host, named, needed)
    if domain.memory and host.nodes and domain.passed_through:
        yield from _fits(domain.at("memory"), host, frozenset(host.nodes), domain.memory)


def _strict(domain: Domain) -> Iterator[tuple[Element, int]]:
    """What binds memory to nodes, and the memory in bytes: of a cell, or of all cells that have no memnode."""
    left = {cell.id: cell.memory or 0 for cell in domain.cells} or {None: domain.memory or 0}
    for element in domain.all("numatune/memnode"):
        memory = left.pop(number(element.get("cellid")), 0)
        if element.get("mode") in _STRICT:
            yield element, memory
    whole = domain.one("numatune/memory")
    if whole is not None and whole.get("mode") in _STRICT and whole.get("placement") != "auto":
        yield whole, sum(left.values())


def _fits(element: Element, host: HostFacts, named: frozenset[int], needed: int) -> Iterator[Fault]:
    sizes = [host.nodes[node] for node in named]
    known = [size for size in sizes if size is not None]
    if len(known) == len(sizes) and needed > sum(known) and named:
        reason = f"{exact_size(needed)}, and node {shown(named)} has {exact_size(sum(known))}"
        yield Fault(element, reason, "less memory, or more nodes")


# -- hugepages -------------------------------------------------------------------------------------


def hugepages(domain: Domain, host: HostFacts) -> Iterator[Fault]:
    """The pages are there, and free: on the nodes of each cell, or anywhere."""
    needs: dict[tuple[int, frozenset[int]], int] = {}
    where: dict[tuple[int, frozenset[int]], Element] = {}
    for element, size, named, memory in backed(domain, host.huge_page):
        key = (size, frozenset(named & host.nodes.keys()) or frozenset(host.nodes))
        needs[key] = needs.get(key, 0) + -(-memory // size)
        where[key] = element
    for (size, named), pages in needs.items():
        yield from _enough(where[size, named], host, size, named, pages)


def _enough(element: Element, host: HostFacts, size: int, named: frozenset[int], pages: int) -> Iterator[Fault]:
    pools = [pool for pool in host.capacity.hugepages if pool.size == size and (pool.node in named or not named)]
    place = f"node {shown(named)}" if named else "this host"
    total, free = sum(pool.total for pool in pools), sum(pool.free for pool in pools)
    claimed = sum(host.capacity.taken.hugepages.get((pool.node, size), 0) for pool in pools)
    words = exact_size(size)
    if total < pages:
        reason = f"{pages} pages of {words} are needed, and {place} has {total}"
        yield Fault(element, reason, _reserve(size, named, pages))
    elif not host.runs and free < pages:
        yield Fault(
            element, f"{pages} pages of {words} are needed, and {free} are free on {place}", "free some, or wait"
        )
    elif not host.runs and total - claimed < pages:
        reason = f"{pages} pages of {words} are needed, and claims have {claimed} of {total} on {place}"
        yield warning(element, reason, "pages that no claim has")


def _reserve(size: int, named: frozenset[int], pages: int) -> str:
    if size >= _AT_BOOT:
        return f"reserve them at boot: hugepagesz={size // _AT_BOOT}G hugepages={pages} on the kernel's command line"
    place = f"/sys/devices/system/node/node{min(named)}" if len(named) == 1 else "/sys/kernel/mm"
    return f"reserve them: write {pages} to {place}/hugepages/hugepages-{size >> 10}kB/nr_hugepages"
