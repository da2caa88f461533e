"""Gives parts of GPUs to a container: one share in the ledger, of cores, memory or both.

The kubelet asks for each resource separately, and does not say for which container. Two calls in a row, of the two
resources of a pair, are for the same one: the first claims what it can, the second claims both anew, of one GPU, and
names it. A container that asks for one of them only is not started."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from vfioctl.containers.api import ContainersApi
from vfioctl.core.locations import import_object
from vfioctl.errors import BadSpec, Busy, ClaimConflict, NoCapacity, VfioctlError
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kubelet.allocating import pairs
from vfioctl.kubelet.allocating.allocation import Allocation
from vfioctl.kubelet.allocating.following import claims_of_pods
from vfioctl.kubelet.allocating.handovers import alone_with, count_of, given
from vfioctl.kubelet.answer.answer import Answer, Edits, answer_with_share
from vfioctl.kubelet.ledger.cordons import cordons
from vfioctl.kubelet.model.device import PROVISIONAL
from vfioctl.kubelet.model.settings import DeviceKind
from vfioctl.kubelet.model.units import is_half, is_whole, labels_for, units_of, without
from vfioctl.placement.api import PlacementApi
from vfioctl.placement.model.request import ClaimRequest
from vfioctl.placement.model.share import TOOLKIT_KIND, WHOLE

if TYPE_CHECKING:
    from vfioctl.claims.model.claim import Claim
    from vfioctl.kubelet.allocating.deadline import Deadline
    from vfioctl.kubelet.model.device import Device, Listing
    from vfioctl.kubelet.model.settings import ResourceSettings
    from vfioctl.session import Session

_ATTEMPTS = 3


class _Amount(NamedTuple):
    """What a container gets of GPUs."""

    cores: int
    memory: int

    def request(self, gpus: Sequence[PciAddress] = (), **labels: str) -> ClaimRequest:
        """Return the request for it. Raises BadSpec for a part of several GPUs."""
        memory = self.memory if self.cores < WHOLE else 0  # a whole GPU has all of it
        devices = tuple(gpus)
        return ClaimRequest(owner=PROVISIONAL, devices=devices, cores=self.cores, gpu_memory=memory, labels=labels)


class PartsAllocation(Allocation):
    """Gives parts of GPUs to containers, and takes them back."""

    def __init__(self, session: Session, listed: Callable[[], Listing | None]) -> None:
        """`listed`: which containers have which parts; None if the kubelet does not tell."""
        super().__init__(session)
        self._listed = listed

    def gpus_for(self, resource: ResourceSettings, count: int, available: Sequence[Device]) -> Sequence[PciAddress]:
        """Return the GPUs that would give so many of these parts, with what the same container was given a moment ago.
        It is advice: none if that cannot be told."""
        try:
            other = self._live(pairs.peek(*self._pair(resource)))
            return self._gpus(resource, self._amount(resource, count, other), other, _node_of(available))
        except VfioctlError:
            return ()

    def _allocate(
        self, resource: ResourceSettings, containers: Sequence[Sequence[Device]], deadline: Deadline
    ) -> Sequence[Answer]:
        other = self._live(pairs.take(*self._pair(resource)))
        made = [other] if other else []
        answers = []
        with self._all_or_none(made, deadline):
            for parts in containers:
                claim, is_told = self._allocated_parts(resource, parts, other, deadline)
                other = None
                made.append(claim)
                self._refuse_cordons({name: name for name in claim.asked})  # whoever cordons one later sees its claim
                answers.append(self._answer_of(resource, claim) if is_told else Answer())
        return answers

    def _ready(self, resource: ResourceSettings, devices: Sequence[Device], deadline: Deadline) -> None:
        names = {(resource.name, part.id) for part in devices}
        for known in claims_of_pods(self._claims):
            if mine := names.intersection(units_of(known)):
                with alone_with(known.id, deadline):
                    claim = self._claims.claim(known.id)
                    if not claim.is_live:  # it was just released
                        continue
                    _refuse_half(resource, claim)
                    restored = self._restored(resource, claim, deadline)
                    self._answer_of(resource, restored)  # refuses where its daemon of MPS has died
                    given(claim.id)
                names -= mine
        if names:
            raise ClaimConflict(
                f"no claim has these parts of {resource.name} any more",
                hint="the container was told of which GPU they are: delete its pod",
                next_command="vfioctl reconcile",
            )

    def _allocated_parts(
        self, resource: ResourceSettings, parts: Sequence[Device], other: Claim | None, deadline: Deadline
    ) -> tuple[Claim, bool]:
        """Claim these parts; return also whether the container is told now of which GPU. `other`: what the same
        container was given of the other resource of a pair."""
        names, node = [part.id for part in parts], _node_of(parts)
        if earlier := self._of_init_container(resource, names, other):
            claim = self._enlarged(resource, earlier, names, deadline)
            if resource.beside and not other:
                pairs.note(*self._pair(resource), claim.id)
            return claim, True
        amount, labels = self._amount(resource, len(names), other), labels_for(resource.name, names)
        if other:
            theirs = [name for _, name in units_of(other)]
            labels = labels_for(resource.beside, theirs, resource.name, names)
        if other and is_whole(other):  # its container was told of these GPUs already, and may use them
            return self._claims.relabel(other.id, labels, why=f"its container asks for {resource.name}, too"), False
        if other:
            self._gpus(resource, amount, other, node)  # refuses before anything is released
            self.release(other, count_of(other.id))
        claim = self._made(resource, amount, labels, deadline, (), node)
        if resource.beside and not other:
            pairs.note(*self._pair(resource), claim.id)
            return claim, is_whole(claim)
        return claim, True

    def _of_init_container(self, resource: ResourceSettings, names: Sequence[str], other: Claim | None) -> Claim | None:
        """Return the claim of an init container of the same pod, from which the kubelet takes parts for the next one.
        End the others that have some of these parts: the kubelet says that they are free, so their pods are gone. One
        may have been taken over from a rejected pod by one with fewer parts: it keeps only those. `other`: what the
        call before gave to the same container; its pod may be known by now."""
        asked, told, found = {(resource.name, name) for name in names}, other and other.id, None
        for claim in claims_of_pods(self._claims):
            if asked.isdisjoint(units := {*units_of(claim)}):
                continue
            others = {unit for unit in units - asked if unit[0] == resource.name}
            listing = self._listed() if others else None
            if others and listing is None and claim.owner != PROVISIONAL and claim.id != told:
                raise Busy(
                    f"which pods have the parts of claim {claim.id} is not known: the kubelet does not tell",
                    next_command=f"vfioctl claim show {claim.id}",
                )
            if listing and any(listing.pods.get(unit) for unit in others):
                self._claims.relabel(claim.id, without(claim, asked), why="its pod does not have these parts")
            elif found is None and not is_half(resource, claim) and (claim.owner == PROVISIONAL or claim.id == told):
                found = claim
            elif not self.release(claim, count_of(claim.id)):
                raise ClaimConflict(
                    f"claim {claim.id} has parts that are asked for, and was just given to a container",
                    next_command=f"vfioctl claim show {claim.id}",
                )
        return found

    def _enlarged(self, resource: ResourceSettings, claim: Claim, names: Sequence[str], deadline: Deadline) -> Claim:
        """Return the claim of an init container, which also serves the next container of its pod: with as much as the
        larger of both has, on the same GPU."""
        units = [*units_of(claim)]
        mine = {name for kind, name in units if kind == resource.name}
        if mine.issuperset(names):
            with alone_with(claim.id, deadline):
                given(claim.id)
            return claim
        if is_whole(claim):
            raise ClaimConflict(f"an init container of the pod has {len(mine)} {resource.name}", hint="ask for as many")
        has, asks = self._amount(resource, 0, claim), self._amount(resource, len(names), None)
        amount = _Amount(max(has.cores, asks.cores), max(has.memory, asks.memory))
        theirs = [name for kind, name in units if kind != resource.name]
        labels = labels_for(resource.name, {*mine, *names}, resource.beside if theirs else "", theirs)
        self.release(claim, count_of(claim.id))
        return self._made(resource, amount, labels, deadline, _gpus_of(claim))

    def _made(
        self,
        resource: ResourceSettings,
        amount: _Amount,
        labels: dict[str, str],
        deadline: Deadline,
        gpus: Sequence[PciAddress] = (),
        node: int | None = None,
    ) -> Claim:
        """Return a new claim. `gpus`: the only ones that will do. `node`: the NUMA node to be near, if possible."""
        for attempt in range(_ATTEMPTS):
            chosen = gpus or self._gpus(resource, amount, None, node)
            try:
                return self._claims.create(amount.request(chosen, **labels), cancel=deadline.is_over).claim
            except (NoCapacity, ClaimConflict):  # somebody else was faster
                if gpus or attempt == _ATTEMPTS - 1:
                    raise
        raise AssertionError

    def _gpus(
        self, resource: ResourceSettings, amount: _Amount, other: Claim | None, node: int | None
    ) -> tuple[PciAddress, ...]:
        """Return the GPU that gives an amount, or the whole GPUs, on this NUMA node if there is enough. `other`: a
        claim that ends before. Raises NoCapacity with the reasons, BadSpec for a part of several GPUs."""
        taken = self._claims.ledger.taken(but=[other.id] if other else ())
        placement, request, cordoned = PlacementApi(self._session), amount.request(), cordons(self._session)
        if node is not None:
            with suppress(NoCapacity, BadSpec):
                return placement.native_gpus(replace(request, numa=node), resource.match, taken, cordoned)
        return placement.native_gpus(request, resource.match, taken, cordoned)

    def _amount(self, resource: ResourceSettings, count: int, other: Claim | None) -> _Amount:
        size = count * resource.size
        cores, memory = (size, 0) if resource.devices is DeviceKind.CORES else (0, size)
        for share in other.shares if other else ():
            cores, memory = cores + share.cores, memory + share.memory
        return _Amount(cores, memory)

    def _pair(self, resource: ResourceSettings) -> tuple[str, frozenset[str], str]:
        return str(self._session.ledger), frozenset((resource.name, resource.beside)), resource.name

    def _live(self, claim: str) -> Claim | None:
        return next((known for known in claims_of_pods(self._claims) if known.id == claim), None) if claim else None

    def _answer_of(self, resource: ResourceSettings, claim: Claim) -> Answer:
        rows = [import_object(row.client_edits) for row in self._session.subsystems if row.client_edits]
        edits = [Edits(*edits_of(self._session, claim)) for edits_of in rows]
        known = ContainersApi(self._session).cdi.names_of(TOOLKIT_KIND)
        return answer_with_share(resource, claim.shares, edits, named={s.uuid for s in claim.shares} <= known)


def _node_of(parts: Sequence[Device]) -> int | None:
    """Return the one NUMA node of parts: the kubelet chose them there, near the container's CPUs."""
    nodes = {part.numa_node for part in parts}
    return nodes.pop() if len(nodes) == 1 else None


def _refuse_half(resource: ResourceSettings, claim: Claim) -> None:
    if is_half(resource, claim):
        raise ClaimConflict(
            f"the container asks for {resource.name} without {resource.beside}", hint="ask for both, or for none"
        )


def _gpus_of(claim: Claim) -> tuple[PciAddress, ...]:
    return tuple(PciAddress(share.address) for share in claim.shares)
