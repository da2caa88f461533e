"""Chooses a domain's devices and CPUs, beside what others have. Reads host, ledger and libvirt; may not write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property

from vfioctl.claims.api import ClaimsApi
from vfioctl.claims.model.claim import Claim
from vfioctl.domain.build.layout.cpus import needed
from vfioctl.domain.build.layout.devices import parent_of
from vfioctl.domain.build.layout.memory import by_room
from vfioctl.domain.document.needs import hugepages_by_node, ordinary_by_node
from vfioctl.domain.document.reader import read_domain
from vfioctl.domain.model.libvirt import NOBODY, URI, DomainXml, Others, known_as
from vfioctl.domain.model.spec import DomainSpec, Policy
from vfioctl.domain.probe.domains import Domains, read_libvirt
from vfioctl.domain.probe.host import read_free_memory
from vfioctl.errors import BadSpec, NoCapacity, UnknownDevice, some_of
from vfioctl.inventory.api import InventoryApi
from vfioctl.inventory.model.numa_affinity import above
from vfioctl.inventory.model.values import PciAddress, Subject
from vfioctl.kernel.libvirt.domains import SOCKETS
from vfioctl.placement.api import why_not_isolated
from vfioctl.placement.model.capacity import Capacity, Context
from vfioctl.placement.model.placement import Placement
from vfioctl.session import Session
from vfioctl.units import format_cpu_list

_NO_CPUS = 0
_NOT_MEANT = "not meant"
_GUEST = "vm"
_ORDINARY = 0
"""The size under which ordinary pages are kept."""


class Placing:
    """One domain on one host. `claim`: the one that the spec names. `own`: devices that its document has already."""

    def __init__(
        self,
        session: Session,
        spec: DomainSpec,
        claim: Claim | None,
        others: Others,
        own: Sequence[Subject],
        *,
        realtime: bool,
    ) -> None:
        self._session, self._claims, self._realtime = session, ClaimsApi(session), realtime
        self._spec, self._claim, self._others, self._own = spec, claim, others, own

    def placed(self) -> tuple[Placement, Capacity]:
        """Return what the domain gets, and the host; a policy that prefers does without CPUs of its own. Raises
        BadSpec, UnknownDevice, NoCapacity, ClaimConflict."""
        if self._spec.nodes:
            self._refuse_unknown()
        try:
            placement, capacity = self._with_cpus()
        except NoCapacity:
            if self._spec.policy is Policy.STRICT or not (self._spec.sources or self._own):
                raise
            placement, capacity = self._place(_NO_CPUS)
        if self._spec.nodes and not self._spec.gpus:
            _refuse_others(self._spec.nodes, placement.devices, capacity)
        return placement, capacity

    def _with_cpus(self) -> tuple[Placement, Capacity]:
        spec, claim = self._spec, self._claim
        if claim and claim.cpus:
            return self._of_claim(claim)
        placement, capacity = self._place(spec.cpus)
        cpus = needed(spec.cpus, spec.smt, capacity.topology)
        if not placement.nodes and len(capacity.topology.by_node) > 1:
            return self._where_room_is(cpus, capacity)
        try:
            return (placement, capacity) if cpus == spec.cpus else self._place(cpus)
        except NoCapacity as error:
            if self._realtime:
                error.hint += "\na realtime guest has a core for each vCPU; --smt together gives it all threads"
            raise

    def _of_claim(self, claim: Claim) -> tuple[Placement, Capacity]:
        """Return the claim's CPUs, or as many of them as the domain needs, near its devices."""
        placement, capacity = self._place(_NO_CPUS)
        cpus = needed(self._spec.cpus, self._spec.smt, capacity.topology)
        if cpus == len(claim.cpus):
            why = f"CPUs {format_cpu_list(claim.cpus)} of claim {claim.id}"
            why_not = why_not_isolated(capacity, claim.cpus)
            return replace(placement, cpus=claim.cpus, why=(*placement.why, why, *why_not)), capacity
        if cpus > len(claim.cpus):
            what = f"claim {claim.id} has {len(claim.cpus)} CPUs, and {cpus} are needed"
            raise NoCapacity(what, hint="ask for fewer with --cpus, or make a claim with more")
        return self._place(cpus, without=set(capacity.topology.core_of).difference(claim.cpus))

    def _where_room_is(self, cpus: int, capacity: Capacity) -> tuple[Placement, Capacity]:
        """Return CPUs of the node with the most free memory that has enough of them: the node of no device is known."""
        free = read_free_memory(self._session.kernel, [node.id for node in capacity.inventory.numa_nodes])
        for node in by_room(self._spec, capacity, free):
            elsewhere = {cpu for core in capacity.topology.cores if core.node != node for cpu in core.cpus}
            with suppress(NoCapacity):
                return self._place(cpus, without=elsewhere)
        return self._place(cpus)

    @cached_property
    def _own_claims(self) -> Collection[str]:
        return (self._claim.id, *self._others.own) if self._claim else self._others.own

    @cached_property
    def _asked(self) -> Sequence[Subject]:
        if self._claim:
            return [device.subject for device in self._claim.devices if device.asked]
        named = self._claims.devices_called(self._spec.devices) if self._spec.devices else ()
        if not self._spec.vgpu:
            return named
        theirs = {*self._others.devices, *named, *self._own}
        return (*named, *self._claims.free_vgpus(self._spec.vgpu, but=self._own_claims, exclude=theirs))

    def _place(self, cpus: int, *, without: Collection[int] = ()) -> tuple[Placement, Capacity]:
        from vfioctl.placement.model.claims import Owner
        from vfioctl.placement.model.request import ClaimRequest

        spec, claim, others = self._spec, self._claim, self._others
        request = ClaimRequest(
            owner=claim.owner if claim else Owner(f"vm/{spec.name}"),
            devices=tuple(dict.fromkeys((*self._asked, *self._own))),
            gpus=spec.gpus,
            numa=spec.numa,
            model=spec.model,
            cpus=cpus,
            realtime=self._realtime,
        )
        but = self._own_claims
        pinned = {**others.cpus, **dict.fromkeys(without, _NOT_MEANT)} if without else others.cpus
        theirs = {name: who for name, who in others.devices.items() if ":" in name and name not in request.devices}
        held = {PciAddress(name): f"{who} has it" for name, who in theirs.items()} if spec.gpus else {}
        context = Context(pinned, others.own_cpus, spec.nodes, held, previews=True)
        placement, capacity = self._claims.place(request, but=but, context=context)
        if without:
            known = {cpu: who for cpu, who in capacity.pinned.items() if who != _NOT_MEANT}
            capacity = replace(capacity, pinned={**others.cpus, **known})
        return placement, self._without_promised(capacity, but) if capacity.taken.hugepages else capacity

    def _without_promised(self, capacity: Capacity, but: Collection[str]) -> Capacity:
        """Return the host without the free hugepages of claims of guests that do not run: they will take them. Whether
        other claims use theirs is unknown, so those pages count as used, as they do for claims."""
        others = self._others.cpus
        used = {cpu for cpu, who in capacity.pinned.items() if who != others.get(cpu)}
        promised: Counter[tuple[int, int]] = Counter()
        for claim in self._claims.claims():
            kind, name = claim.owner.split("/", 1)
            runs = name in self._others.running or not used.isdisjoint(claim.cpus)
            if kind == _GUEST and claim.id not in but and not runs:
                promised.update({(size.node, size.size): size.pages for size in claim.hugepages})
        pools = (replace(pool, free=max(0, pool.free - promised[pool.node, pool.size])) for pool in capacity.hugepages)
        return replace(capacity, hugepages=tuple(pools))

    def _refuse_unknown(self) -> None:
        inventory = InventoryApi(self._session).inventory(nvml=False)
        nodes = [node.id for node in inventory.numa_nodes] or [0]
        for address, node in self._spec.nodes.items():
            if address not in inventory.by_address:
                what = f"--node {address}={node}: there is no such device here"
                raise UnknownDevice(what, next_command="vfioctl inventory --all")
            if node not in nodes:
                hint = f"this host has {', '.join(map(str, nodes))}"
                raise BadSpec(f"--node {address}={node}: there is no NUMA node {node}", hint=hint)


def _refuse_others(nodes: Mapping[PciAddress, int], devices: Sequence[Subject], capacity: Capacity) -> None:
    """Raise BadSpec for the node of a function that determines the node of none of these devices."""
    of_these = relevant_nodes(nodes, devices, capacity)
    if others := [f"{address}={node}" for address, node in nodes.items() if address not in of_these]:
        raise BadSpec(f"--node {others[0]}: the domain does not get this device", hint=f"it gets {some_of(devices)}")


def relevant_nodes(
    nodes: Mapping[PciAddress, int], devices: Sequence[Subject], capacity: Capacity
) -> Mapping[PciAddress, int]:
    """Return the nodes of functions that determine the node of one of these devices."""
    slots = {slot for device in devices for slot in _node_sources(device, capacity)}
    return {address: node for address, node in nodes.items() if address.slot in slots}


def _node_sources(device: Subject, capacity: Capacity) -> Iterator[str]:
    """Yield the slots of functions that may determine a device's node: its own, its PF's or parent's, those above."""
    inventory = capacity.inventory
    if isinstance(device, PciAddress):
        function = inventory.by_address.get(device)
    else:
        function = parent_of(device, inventory, capacity.parents)
    if function:
        physical = inventory.by_address.get(function.physfn) if function.physfn else None
        yield from (ancestor.address.slot for ancestor in (function, *above(physical or function, inventory)))
        yield from (physical.address.slot,) if physical else ()


def with_own_usage(domain: DomainXml, others: Others) -> Others:
    """Return what other domains have, with what this one uses itself while it runs. Raises BadDocument."""
    if not domain.live:
        return others
    document, memory = read_domain(domain.live), Counter[tuple[int, int]]()
    for node, size, pages in hugepages_by_node(document):
        memory[node, size] += size * pages
    for node, amount in ordinary_by_node(document):
        memory[node, _ORDINARY] += amount
    return others._replace(own_cpus=document.exclusive_cpus, own_memory=memory)


def without_own_usage(capacity: Capacity, others: Others) -> Capacity:
    """Return the host as if the domain did not run: its hugepages are free."""
    owns = [(pool, others.own_memory.get((pool.node, pool.size), 0) // pool.size) for pool in capacity.hugepages]
    pools = (replace(pool, free=min(pool.total, pool.free + own)) if own else pool for pool, own in owns)
    return replace(capacity, hugepages=tuple(pools))


def free_without_own_usage(free: Mapping[int, int], others: Others) -> Mapping[int, int]:
    """Return the bytes of ordinary memory that are free on each node, as if the domain did not run."""
    return {node: size + others.own_memory.get((node, _ORDINARY), 0) for node, size in free.items()}


def read_others(session: Session, *without: str, connect: str = "") -> Others:
    """Return what the domains of libvirt have, except the named ones; nothing where no libvirt runs."""
    uri = Domains(session).uri(connect)
    if uri == URI and not connect and not any(map(session.kernel.has, SOCKETS)):
        return NOBODY
    from vfioctl.domain.document.other_domains import others_in

    owners = {f"vm/{name}" for name in without}
    online = InventoryApi(session).online_cpus()
    others = others_in(read_libvirt(session.kernel, uri), online, but=without)
    claims = ClaimsApi(session).claims()
    own = (claim.id for claim in claims if claim.owner in owners and claim.is_of(claim.owner, known_as(uri)))
    return others._replace(own=tuple(own))
