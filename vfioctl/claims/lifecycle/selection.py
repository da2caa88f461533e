"""Chooses the devices of a claim on the host as it is, and drafts the claim. Reads the host, and may not write to it.

`Choosing` reads first, and then decides as often as it is asked: the ledger asks inside a transaction, so that what is
taken cannot change before the claim is recorded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from vfioctl.claims.ledger.rows import CPU, reservation
from vfioctl.claims.lifecycle.device_plans import refuse_held
from vfioctl.claims.lifecycle.devices import mediated, uses_of, whole_functions
from vfioctl.claims.model.claim import Claim, ClaimedDevice, ClaimState
from vfioctl.errors import BadSpec, DeviceInUse, NoCapacity, UnknownDevice, VfioctlError, some_of
from vfioctl.inventory.api import InventoryApi
from vfioctl.inventory.model.values import PciAddress
from vfioctl.placement.choosing.placement import candidates, place, place_beside, refused
from vfioctl.placement.explaining.failures import no_capacity
from vfioctl.placement.model.owner import Owner
from vfioctl.placement.model.placement import NewVgpus, Placement, Rejection
from vfioctl.placement.probe.capacity import read_capacity
from vfioctl.units import Uuid
from vfioctl.vgpu.model.kinds import MDEV, VGPU_TYPE, creates, place_and_type

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from vfioctl.claims.ledger.ledger import Uses
    from vfioctl.core.change import Plan
    from vfioctl.inventory.model.functions import Inventory
    from vfioctl.placement.model.capacity import Capacity
    from vfioctl.placement.model.request import ClaimRequest
    from vfioctl.placement.model.taken import Taken
    from vfioctl.session import Session
    from vfioctl.vgpu.api import VgpuApi

_CLAIMS = "claims"
NOTHING_PINNED: Mapping[int, str] = MappingProxyType({})
NOTHING_HELD: Mapping[PciAddress, str] = MappingProxyType({})
AS_TOLD: Mapping[PciAddress, int] = MappingProxyType({})
_TOO_FEW = "it has room for one, but not for all"
_FREE = "free, with room for one; cards with less to spare go first"


class Choosing:
    """One request on one host. `plan`: creates the vGPUs of a request for vGPUs; None for other requests.

    `as_they_are`: the devices are the owner's already, so that no rule of placement keeps them from it.
    """

    def __init__(  # noqa: PLR0913 - each says something else of the host
        self,
        session: Session,
        request: ClaimRequest,
        taken: Taken,
        *,
        as_they_are: bool = False,
        pinned: Mapping[int, str] = NOTHING_PINNED,
        nodes: Mapping[PciAddress, int] = AS_TOLD,
        held: Mapping[PciAddress, str] = NOTHING_HELD,
        own: Collection[int] = (),
    ) -> None:
        """`pinned`: more CPUs that others have, each with who; a claim gets none of them. `own`: CPUs of its guest.

        `nodes`: the NUMA nodes of functions, where the firmware tells none. `held`: functions not to choose, and why.
        """
        self._session, self._request, self._as_they_are = session, request, as_they_are
        # NVML takes long, and tells no more of the devices than their memory and names
        asked = bool(request.memory_min or request.model)
        self.inventory: Inventory = InventoryApi(session).inventory(nvml=asked).with_nodes(nodes)
        self._refuse_no_node()
        settings, links, cpus = session.settings(_CLAIMS), request.gpus > 1, request.cpus > 0
        found = read_capacity(session.kernel, self.inventory, taken, settings, links=links, cpus=cpus)
        guests = {cpu: who for cpu, who in found.pinned.items() if cpu not in own}
        self._free = replace(found, parents=self._parents(), pinned={**pinned, **guests}, held=held)
        self.placement: Placement | None = None
        self.plan = self._creation() if request.vgpu else None
        if request.gpus:
            self._avoid_held()

    def _refuse_no_node(self) -> None:
        wanted, nodes = self._node, [node.id for node in self.inventory.numa_nodes]
        if wanted is not None and nodes and wanted not in nodes:
            raise BadSpec(f"there is no NUMA node {wanted}", hint=f"this host has {', '.join(map(str, nodes))}")

    def _parents(self) -> Mapping[Uuid, str]:
        """The parents of the host's mediated devices, if the request names such."""
        if not any(isinstance(device, Uuid) for device in self._request.devices):
            return {}
        found = self._vgpus.vgpus().instances
        return {Uuid(vgpu.id): vgpu.parent for vgpu in found if vgpu.dialect == MDEV and vgpu.state != "defined"}

    def _avoid_held(self) -> None:
        """Choose no GPU that somebody has open, whose change would be refused. Raises NoCapacity."""
        while True:
            try:
                held = self._held(self.draft(self._free.taken, None)[0].functions)
                if not held:
                    return
            except NoCapacity:
                left = self._gpus.difference(self._refused) if self._free.held else ()
                held = self._held([*map(PciAddress, left)])  # the error is to say it of these too
                if not held:
                    raise
            self._free = replace(self._free, held={**self._free.held, **held})

    def _held(self, gpus: Sequence[PciAddress]) -> Mapping[PciAddress, str]:
        """Return which of these GPUs are in use, and by whom."""
        if not self._holders(gpus):
            return {}
        return {gpu: f"held by {some_of(names, 2)}" for gpu in gpus if (names := self._holders([gpu]))}

    def _holders(self, gpus: Sequence[PciAddress]) -> Sequence[str]:
        everything = (replace(each, asked=True) for each in whole_functions(self.inventory, gpus))
        try:
            refuse_held(self._session, self._drafted(tuple(everything)), self.inventory, drivers=self.binds)
        except DeviceInUse as error:
            holders = cast("list[dict[str, str]]", error.facts.get("holders", []))
            return tuple(dict.fromkeys(holder["name"] for holder in holders))
        except VfioctlError:  # it is raised again when the plan is made for the claim
            return ()
        return ()

    @property
    def capacity(self) -> Capacity:
        """The host as it was read, without what was chosen."""
        return self._free

    # -- new vGPUs ---------------------------------------------------------------------------------

    def _creation(self) -> Plan:
        request, reasons = self._request, self._refused
        cards = [self.inventory.by_address[card] for card in reasons]
        exclude = (*self._free.taken.whole, *(parent for card in cards for parent in (card.address, *card.virtfns)))
        try:
            return self._vgpus.plan_create(request.vgpu, numa=self._node, count=request.vgpus, exclude=exclude)
        except NoCapacity as error:
            if not reasons:
                raise
            none = {PciAddress(card): why or _TOO_FEW for card, why in self._why_none.items() if card in self._gpus}
            raise no_capacity(error.message, candidates(self._free), {**none, **reasons}) from None

    @property
    def _vgpus(self) -> VgpuApi:
        from vfioctl.vgpu.api import VgpuApi  # imported late: most requests are for whole GPUs

        return VgpuApi(self._session)

    @property
    def _node(self) -> int | None:
        return self._request.numa if isinstance(self._request.numa, int) else None

    @cached_property
    def _gpus(self) -> frozenset[str]:
        return frozenset(gpu.address for gpu in candidates(self._free))

    @property
    def _refused(self) -> Mapping[PciAddress, str]:
        return refused(self._request, self._free)

    @cached_property
    def _why_none(self) -> Mapping[str, str]:
        """Why no vGPU of the type can be created on each card that offers vGPUs; empty if one can."""
        from vfioctl.vgpu.model.lookup import why_none

        cards = self._vgpus.vgpus().cards
        return {card.id: why_none(card, self._request.vgpu, numa=self._node) for card in cards}

    def explained(self) -> Placement:
        """Return the placement of the last draft, with the reason for each other GPU and parent of vGPUs."""
        if self.placement is None:
            raise AssertionError("nothing was drafted")
        if self.plan is None:
            return self.placement
        return replace(self.placement, others=tuple(self._others(self.placement.vgpus)))

    def _others(self, vgpus: Iterable[NewVgpus]) -> Iterator[Rejection]:
        parents, reasons = {each.parent for each in vgpus}, self._refused
        for gpu in candidates(self._free):
            if parents.isdisjoint((gpu.address, *gpu.virtfns)):
                why = reasons.get(gpu.address) or self._why_none.get(gpu.address, "it offers no vGPUs")
                yield Rejection(gpu.address, gpu.title, why or _FREE, free=not why)
        for name, why in self._why_none.items():
            if name not in self._gpus and name not in parents:
                yield Rejection(name, "", why or _FREE, free=not why)

    # -- the claim ---------------------------------------------------------------------------------

    @property
    def binds(self) -> bool:
        """Whether the devices are to be bound to VFIO."""
        return self._request.bind

    def draft(self, taken: Taken, expires: str | None) -> tuple[Claim, Uses]:
        """Return the claim, not yet with an id, and what it takes.

        Raises ClaimConflict, NoCapacity, UnknownDevice.
        """
        refuse_taken(self._request.devices, (), taken)
        _refuse_taken_cpus(self._request.exact_cpus, taken)
        placement = self.placement = self._place(taken)
        devices = _created(self.plan) if self.plan else self._existing(placement)
        claim = self._drafted(devices)._replace(
            cpus=placement.cpus, hugepages=placement.hugepages, labels=self._request.labels, expires=expires
        )
        uses = uses_of(self.inventory, devices, placement.cpus)
        refuse_taken(uses.whole, uses.shared, taken)
        return claim, uses

    def _drafted(self, devices: tuple[ClaimedDevice, ...]) -> Claim:
        owner = Owner(self._request.owner)
        return Claim(id="", owner=owner, state=ClaimState.RESERVED, devices=devices, since="", boot_id="")

    def _place(self, taken: Taken) -> Placement:
        """Return what the request gets."""
        if self._as_they_are:
            return Placement(self._request.devices, (), (), (), ())
        capacity = replace(self._free, taken=taken)
        if self.plan is None:
            return place(self._request, capacity)
        found = place_beside(_new_vgpus(self.plan), self._request, capacity)
        return replace(found, why=(*self.plan.notes, *found.why))

    def _existing(self, placement: Placement) -> tuple[ClaimedDevice, ...]:
        mdevs = {}
        for device in placement.devices:
            if isinstance(device, Uuid):
                if device not in self._free.parents:
                    raise UnknownDevice(f"there is no mediated device {device} here", next_command="vfioctl vgpu list")
                mdevs[device] = self._free.parents[device]
        return (
            *whole_functions(self.inventory, placement.functions, cards=not self._as_they_are),
            *mediated(mdevs),
        )


def refuse_taken(whole: Iterable[str], shared: Iterable[str], taken: Taken) -> None:
    """Raise ClaimConflict for the first device that another claim has, or of which it has a part.

    The tables of the ledger refuse the same. `shared`: devices of which only a part is taken.
    """
    for device in (*whole, *shared):
        if device in taken.whole:
            claim, owner = taken.whole[device]
            raise reservation(device, claim, owner, whole=True).conflict({"claim": claim, "owner": owner})
    for device in whole:
        if device in taken.shared:
            claim, owner = taken.shared[device][0]
            raise reservation(device, claim, owner, whole=False).conflict({"claim": claim, "owner": owner})


def _refuse_taken_cpus(cpus: Iterable[int], taken: Taken) -> None:
    for cpu in cpus:
        if cpu in taken.cpus:
            claim, owner = taken.cpus[cpu]
            raise reservation(f"{CPU}{cpu}", claim, owner, whole=True).conflict({"claim": claim, "owner": owner})


def _new_vgpus(plan: Plan) -> tuple[NewVgpus, ...]:
    """Return where a plan creates vGPUs, one for each parent and type."""
    places = Counter(place_and_type(change) for change in plan.changes if creates(change))
    return tuple(NewVgpus(parent, kind, count) for (parent, kind), count in places.items())


def _created(plan: Plan) -> tuple[ClaimedDevice, ...]:
    """Return the vGPUs that a plan creates."""
    parents = {Uuid(change.name): place_and_type(change)[0] for change in plan.changes_of(MDEV)}
    vfs = (ClaimedDevice(PciAddress(change.subject)) for change in plan.changes_of(VGPU_TYPE))
    return (*mediated(parents), *vfs)
