"""Drafts the claim of a request: the devices of its placement, and what they take. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from vfioctl.claims.ledger.ledger import Draft
from vfioctl.claims.ledger.rows import CPU, reservation
from vfioctl.claims.lifecycle.devices import mediated, uses_of, whole_functions
from vfioctl.claims.model.claim import Claim, ClaimedDevice, ClaimState
from vfioctl.errors import UnknownDevice
from vfioctl.inventory.model.values import PciAddress
from vfioctl.placement.api import place
from vfioctl.placement.model.owner import Owner
from vfioctl.placement.model.placement import Placement
from vfioctl.units import Uuid
from vfioctl.vgpu.model.kinds import MDEV, VGPU_TYPE, place_and_type

if TYPE_CHECKING:
    from vfioctl.core.change import Plan
    from vfioctl.placement.model.capacity import Capacity
    from vfioctl.placement.model.request import ClaimRequest
    from vfioctl.placement.model.taken import Taken


def draft(
    request: ClaimRequest, capacity: Capacity, taken: Taken, expires: str | None = None, *, as_they_are: bool = False
) -> Draft:
    """Return the claim, not yet with an id, what it takes, and its placement.

    `taken`: what other claims take by now. `as_they_are`: the devices are the owner's already, so that no rule of
    placement keeps them from it.

    Raises ClaimConflict, NoCapacity, UnknownDevice.
    """
    refuse_taken(request.devices, (), taken)
    _refuse_taken_cpus(request.exact_cpus, taken)
    placement = Placement(request.devices) if as_they_are else place(request, replace(capacity, taken=taken))
    if capacity.creation:
        devices = _created(capacity.creation.plan)
    else:
        devices = _existing(placement, capacity, cards=not as_they_are)
    claim = Claim(
        id="",
        owner=Owner(request.owner),
        state=ClaimState.RESERVED,
        devices=devices,
        since="",
        boot_id="",
        cpus=placement.cpus,
        hugepages=placement.hugepages,
        labels=request.labels,
        expires=expires,
    )
    uses = uses_of(capacity.inventory, devices, placement.cpus)
    refuse_taken(uses.whole, uses.shared, taken)
    return Draft(claim, uses, placement)


def _existing(placement: Placement, capacity: Capacity, *, cards: bool) -> tuple[ClaimedDevice, ...]:
    mdevs = {}
    for device in placement.devices:
        if isinstance(device, Uuid):
            if device not in capacity.parents:
                raise UnknownDevice(f"there is no mediated device {device} here", next_command="vfioctl vgpu list")
            mdevs[device] = capacity.parents[device]
    return (*whole_functions(capacity.inventory, placement.functions, cards=cards), *mediated(mdevs))


def _created(plan: Plan) -> tuple[ClaimedDevice, ...]:
    """Return the vGPUs that a plan creates."""
    parents = {Uuid(change.name): place_and_type(change)[0] for change in plan.changes_of(MDEV)}
    vfs = (ClaimedDevice(PciAddress(change.subject)) for change in plan.changes_of(VGPU_TYPE))
    return (*mediated(parents), *vfs)


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
