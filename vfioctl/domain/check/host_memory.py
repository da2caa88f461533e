"""Rules about NUMA nodes, memory and hugepages of the host. May not do input or output."""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree.ElementTree import Element

from vfioctl.domain.check.domain import Domain
from vfioctl.domain.check.fault import Fault, warning
from vfioctl.domain.check.host import HostFacts
from vfioctl.domain.check.values import cpuset, number, scaled, shown, size_in_words

_NORMAL = 4096
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
    """The memory of each strict cell is on its nodes; that of a guest with devices of the host is all there."""
    for element in domain.all("numatune/memnode"):
        cells = [cell for cell in domain.cells if cell.id == number(element.get("cellid"))]
        named = cpuset(element.get("nodeset")) or frozenset()
        needed = (cells[0].memory or 0) if cells else 0
        if element.get("mode") in _STRICT and named <= host.nodes.keys():
            yield from _fits(element, host, named, needed)
    if domain.memory and host.nodes and domain.passed_through:
        yield from _fits(domain.at("memory"), host, frozenset(host.nodes), domain.memory)


def _fits(element: Element, host: HostFacts, named: frozenset[int], needed: int) -> Iterator[Fault]:
    sizes = [host.nodes[node] for node in named]
    known = [size for size in sizes if size is not None]
    if len(known) == len(sizes) and needed > sum(known) and named:
        reason = f"{size_in_words(needed)}, and node {shown(named)} has {size_in_words(sum(known))}"
        yield Fault(element, reason, "less memory, or more nodes")


# -- hugepages -------------------------------------------------------------------------------------


def hugepages(domain: Domain, host: HostFacts) -> Iterator[Fault]:
    """The pages are there, and free: on the nodes of each cell, or anywhere."""
    needs: dict[tuple[int, frozenset[int]], int] = {}
    where: dict[tuple[int, frozenset[int]], Element] = {}
    for element, size, named, memory in backed(domain):
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
    words = size_in_words(size)
    if total < pages:
        reason = f"{pages} pages of {words} are needed, and {place} has {total}"
        yield Fault(element, reason, f"reserve them, at boot for 1 GiB: hugepagesz={words[0]}{words.split()[1][0]}")
    elif not host.runs and free < pages:
        yield Fault(
            element, f"{pages} pages of {words} are needed, and {free} are free on {place}", "free some, or wait"
        )
    elif not host.runs and total - claimed < pages:
        reason = f"{pages} pages of {words} are needed, and claims have {claimed} of {total} on {place}"
        yield warning(element, reason, "pages that no claim has")


def backed(domain: Domain) -> Iterator[tuple[Element, int, frozenset[int], int]]:
    """Each part of the memory on hugepages: its element, the size of a page, host nodes if it has any, and bytes."""
    whole = domain.one("numatune/memory")
    default = (cpuset(whole.get("nodeset")) or frozenset()) if whole is not None else frozenset[int]()
    homes = {number(each.get("cellid")): cpuset(each.get("nodeset")) for each in domain.all("numatune/memnode")}
    pages = [(each, *_page(each)) for each in domain.all("memoryBacking/hugepages/page")]
    for element, size, cells in pages:
        if not size or size <= _NORMAL:
            continue
        if not domain.cells:
            yield element, size, default, domain.memory or 0
        for cell in domain.cells:
            others = any(other is not element and named and cell.id in named for other, _, named in pages)
            if cell.memory and (cell.id in cells if cells is not None else not others):
                yield element, size, homes.get(cell.id) or default, cell.memory


def _page(element: Element) -> tuple[int | None, frozenset[int] | None]:
    return scaled(element.get("size"), element.get("unit")), cpuset(element.get("nodeset"))
