"""What the other domains of libvirt have, and what a running domain uses of its host already. May not write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from vfioctl.domain.model.libvirt import NOBODY, URI, DomainXml, Others, known_as
from vfioctl.domain.probe.domains import Domains
from vfioctl.kernel.libvirt.domains import SOCKETS
from vfioctl.placement.model.capacity import Capacity, HugepagePool
from vfioctl.session import Session

_ORDINARY = 0


def with_own_usage(domain: DomainXml, others: Others) -> Others:
    """Return what other domains have, with what this one uses itself while it runs. Raises BadDocument."""
    if not domain.live:
        return others
    from vfioctl.domain.document.needs import hugepages_by_node, ordinary_by_node
    from vfioctl.domain.document.reader import read_domain

    document, memory = read_domain(domain.live), Counter[tuple[int, int]]()
    for node, size, pages in hugepages_by_node(document):
        memory[node, size] += size * pages
    for node, amount in ordinary_by_node(document):
        memory[node, _ORDINARY] += amount
    return others._replace(own_cpus=document.exclusive_cpus, own_memory=memory)


def without_own_usage(capacity: Capacity, others: Others) -> Capacity:
    """Return the host as if the domain did not run: its hugepages are free."""
    return replace(capacity, hugepages=tuple(_with_own(pool, others) for pool in capacity.hugepages))


def _with_own(pool: HugepagePool, others: Others) -> HugepagePool:
    own = others.own_memory.get((pool.node, pool.size), 0) // pool.size
    return replace(pool, free=min(pool.total, pool.free + own)) if own else pool


def free_without_own_usage(free: Mapping[int, int], others: Others) -> Mapping[int, int]:
    """Return the bytes of ordinary memory that are free on each node, as if the domain did not run."""
    return {node: size + others.own_memory.get((node, _ORDINARY), 0) for node, size in free.items()}


def read_others(session: Session, *without: str, connect: str = "") -> Others:
    """Return what the domains of libvirt have, except the named ones; nothing where no libvirt runs."""
    uri = Domains(session).uri(connect)
    if uri == URI and not connect and not any(map(session.kernel.has, SOCKETS)):
        return NOBODY
    from vfioctl.claims.api import ClaimsApi
    from vfioctl.domain.document.other_domains import others_in
    from vfioctl.domain.probe.domains import read_libvirt
    from vfioctl.inventory.api import InventoryApi

    owners = {f"vm/{name}" for name in without}
    online = InventoryApi(session).online_cpus()
    others = others_in(read_libvirt(session.kernel, uri), online, but=without)
    claims = ClaimsApi(session).claims()
    own = (claim.id for claim in claims if claim.owner in owners and claim.is_of(claim.owner, known_as(uri)))
    return others._replace(own=tuple(own))
