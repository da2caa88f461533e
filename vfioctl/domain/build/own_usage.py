"""What a domain that runs has of its host already, which is not taken from itself. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from vfioctl.domain.check.rules.domain import Domain
    from vfioctl.domain.model.libvirt import DomainXml
    from vfioctl.domain.model.other_domains import Others
    from vfioctl.placement.model.capacity import Capacity, HugepagePool

_ORDINARY = 0


def beside(domain: DomainXml, others: Others) -> Others:
    """Return what other domains have, with what this one has itself while it runs. Raises BadDocument."""
    if not domain.live:
        return others
    from vfioctl.domain.check.rules.domain import Domain
    from vfioctl.domain.document.xml import parse
    from vfioctl.domain.run.needs import needs_of

    needs, memory = needs_of(domain.live), Counter[tuple[int, int]]()
    for node, size, pages in needs.hugepages:
        memory[node, size] += size * pages
    for node, amount in _ordinary(Domain(parse(domain.live))):
        memory[node, _ORDINARY] += amount
    return others._replace(own_cpus=needs.cpus, own_memory=memory)


def _ordinary(domain: Domain) -> Iterator[tuple[int, int]]:
    """Yield the node and the bytes of each cell with ordinary pages, where the document says one node."""
    if domain.one("memoryBacking/hugepages") is not None:
        return
    from vfioctl.domain.document.values import cpuset, number

    homes = {number(each.get("cellid")): cpuset(each.get("nodeset")) for each in domain.all("numatune/memnode")}
    for cell in domain.cells:
        nodes = homes.get(cell.id) or frozenset()
        if cell.memory and len(nodes) == 1:
            yield next(iter(nodes)), cell.memory


def without_itself(capacity: Capacity, others: Others) -> Capacity:
    """Return the host as if the domain itself did not run: its hugepages are free."""
    return replace(capacity, hugepages=tuple(_with_own(pool, others) for pool in capacity.hugepages))


def _with_own(pool: HugepagePool, others: Others) -> HugepagePool:
    own = others.own_memory.get((pool.node, pool.size), 0) // pool.size
    return replace(pool, free=min(pool.total, pool.free + own)) if own else pool


def free_without_itself(free: Mapping[int, int], others: Others) -> Mapping[int, int]:
    """Return the bytes of ordinary memory that are free on each node, as if the domain itself did not run."""
    return {node: size + others.own_memory.get((node, _ORDINARY), 0) for node, size in free.items()}
