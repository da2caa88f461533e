"""Chooses the devices of a claim on the host as it is, and drafts the claim. Reads the host, and may not write to it.

`Choosing` reads first, and then decides as often as it is asked: the ledger asks inside a transaction, so that what is
taken cannot change before the claim is recorded.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vfioctl.claims.devices import mediated, uses_of, whole_functions
from vfioctl.claims.model.claim import Claim, ClaimedDevice, ClaimState
from vfioctl.claims.model.owner import Owner
from vfioctl.claims.model.placement import Placement
from vfioctl.claims.placement.placement import place, place_beside, refused
from vfioctl.claims.placing import capacity_of
from vfioctl.claims.rows import reservation
from vfioctl.inventory.api import InventoryApi
from vfioctl.inventory.model.values import PciAddress, Uuid
from vfioctl.vgpu.api import VgpuApi
from vfioctl.vgpu.model.kinds import MDEV, VGPU_TYPE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from vfioctl.claims.ledger import Uses
    from vfioctl.claims.model.request import ClaimRequest
    from vfioctl.claims.model.taken import Taken
    from vfioctl.core.change import Plan
    from vfioctl.inventory.model.functions import Inventory
    from vfioctl.inventory.model.values import Subject
    from vfioctl.session import Session


class Choosing:
    """One request on one host. `plan`: creates the vGPUs of a request for vGPUs; None for other requests.

    `as_they_are`: the devices are the owner's already, so that no rule of placement keeps them from it.
    """

    def __init__(self, session: Session, request: ClaimRequest, taken: Taken, *, as_they_are: bool = False) -> None:
        self._session, self._request, self._as_they_are = session, request, as_they_are
        # NVML takes long, and tells no more of the devices than their memory and names
        asked = bool(request.memory_min or request.model)
        self.inventory: Inventory = InventoryApi(session).inventory(nvml=asked)
        self._free = capacity_of(session, taken, self.inventory, links=request.gpus > 1, cpus=request.cpus > 0)
        self.placement: Placement | None = None
        self.plan = self._creation(taken) if request.vgpu else None

    def _creation(self, taken: Taken) -> Plan:
        request = self._request
        node = request.numa if isinstance(request.numa, int) else None
        cards = [self.inventory.by_address[card] for card in refused(request, replace(self._free, taken=taken))]
        exclude = (*taken.whole, *(parent for card in cards for parent in (card.address, *card.virtfns)))
        return VgpuApi(self._session).plan_create(request.vgpu, numa=node, count=request.vgpus, exclude=exclude)

    @property
    def binds(self) -> bool:
        """Whether the devices are to be bound to VFIO."""
        return self._request.bind

    def place(self, taken: Taken) -> Placement:
        """Return what the request gets. Raises ClaimConflict, NoCapacity, UnknownDevice."""
        _refuse_taken(self._request.devices, taken)
        if self._as_they_are:
            return Placement(self._request.devices, (), (), (), ())
        capacity = replace(self._free, taken=taken)
        if self.plan is None:
            return place(self._request, capacity)
        above = dict.fromkeys(each.address for each in _created(self.plan))
        functions = (function.address for function in self.inventory.functions if function.address in above)
        return place_beside(tuple(functions), self._request, capacity)

    def draft(self, taken: Taken, expires: str | None) -> tuple[Claim, Uses]:
        """Return the claim, not yet with an id, and what it takes. Raises what `place` raises."""
        placement = self.placement = self.place(taken)
        devices = _created(self.plan) if self.plan else self._existing(placement)
        claim = Claim(
            id="",
            owner=Owner(self._request.owner),
            state=ClaimState.RESERVED,
            devices=devices,
            since="",
            boot_id="",
            cpus=placement.cpus,
            hugepages=placement.hugepages,
            labels=self._request.labels,
            expires=expires,
        )
        return claim, uses_of(self.inventory, devices, placement.cpus)

    def _existing(self, placement: Placement) -> tuple[ClaimedDevice, ...]:
        mdevs = [each for each in placement.devices if isinstance(each, Uuid)]
        parents = self._parents() if mdevs else {}
        functions = whole_functions(self.inventory, placement.functions)
        return (*functions, *mediated({each: parents[each] for each in mdevs}))

    def _parents(self) -> Mapping[Uuid, str]:
        """The parents of the host's mediated devices."""
        found = VgpuApi(self._session).vgpus().instances
        return {Uuid(vgpu.id): vgpu.parent for vgpu in found if vgpu.dialect == MDEV and vgpu.state != "defined"}


def _refuse_taken(devices: Iterable[Subject], taken: Taken) -> None:
    """Raise ClaimConflict for the first device that another claim has."""
    for device in devices:
        if device in taken.whole:
            claim, owner = taken.whole[device]
            raise reservation(device, claim, owner, whole=True).conflict({"claim": claim, "owner": owner})


def _created(plan: Plan) -> tuple[ClaimedDevice, ...]:
    """Return the vGPUs that a plan creates."""
    parents = {Uuid(change.name): change.after.rpartition("/")[0] for change in plan.changes_of(MDEV)}
    vfs = (ClaimedDevice(PciAddress(change.subject)) for change in plan.changes_of(VGPU_TYPE))
    return (*mediated(parents), *vfs)
