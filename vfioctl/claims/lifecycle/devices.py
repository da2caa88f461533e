"""The devices of a claim: those that names mean, what it takes of them, and their device files. May not write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from vfioctl.claims.ledger.ledger import Draft, Uses
from vfioctl.claims.ledger.rows import CLAIM, CPU
from vfioctl.claims.model.claim import Claim, ClaimedDevice, ClaimState, Nodes
from vfioctl.core.reservations import Reservation
from vfioctl.errors import ClaimConflict, UnknownDevice
from vfioctl.inventory.api import InventoryApi
from vfioctl.inventory.model.functions import Inventory
from vfioctl.inventory.model.scope import scope_of
from vfioctl.inventory.model.values import PciAddress, Subject
from vfioctl.placement.api import exceeded, place
from vfioctl.placement.model.claims import Owner
from vfioctl.placement.model.placement import Placement
from vfioctl.placement.model.share import GpuShare
from vfioctl.units import UUID, Uuid
from vfioctl.vgpu.model.kinds import MDEV, VGPU_TYPE, place_and_type

if TYPE_CHECKING:
    from vfioctl.core.change import Plan
    from vfioctl.placement.model.capacity import Capacity
    from vfioctl.placement.model.claims import Taken
    from vfioctl.placement.model.request import ClaimRequest
    from vfioctl.session import Session


def subjects(inventory: Inventory, names: Sequence[str]) -> tuple[Subject, ...]:
    """Return the devices that names mean: a UUID is that of a mediated device. Raises UnknownDevice, BadAddress."""
    named: list[Subject] = []
    for name in names:
        named += [Uuid(name)] if UUID.fullmatch(name) else InventoryApi.chosen(inventory, [name])
    return tuple(dict.fromkeys(named))


def uses_of(inventory: Inventory, devices: Sequence[ClaimedDevice], cpus: Iterable[int]) -> Uses:
    """Return what a claim takes: a VF takes a part of its PF, a mediated device a part of its parent, a PF or VF."""
    whole: list[str] = [device.subject for device in devices]
    physical = {str(function.address): function.physfn for function in inventory.functions}
    above: list[str] = []
    for device in devices:
        above += filter(None, (device.address if device.mdev else None, physical.get(device.address)))
    shared = (name for name in dict.fromkeys(above) if name not in whole)
    return Uses((*whole, *(f"{CPU}{number}" for number in cpus)), tuple(shared))


def _with_shares(uses: Uses, shares: Sequence[GpuShare]) -> Uses:
    """Return what a claim takes with GPUs that stay with their host driver: a whole one is nobody else's."""
    whole = [share.address for share in shares if share.is_whole]
    parts = tuple(share for share in shares if not share.is_whole)
    return Uses((*uses.whole, *whole), (*uses.shared, *(share.address for share in parts)), parts)


def nodes_of(session: Session, claim: Claim) -> Mapping[str, Nodes]:
    """Return the VFIO device files of the claim's devices, by address or UUID, as they are now."""
    ours = {device.subject for device in claim.devices}
    functions = InventoryApi(session).inventory(nvml=False, near=claim.functions).functions
    nodes: dict[str, Nodes] = {f.address: Nodes(f.vfio_group, f.vfio_cdev) for f in functions if f.address in ours}
    if claim.mdevs:
        from vfioctl.vgpu.api import VgpuApi

        vgpus = {vgpu.id: vgpu for vgpu in VgpuApi(session).vgpus().instances}
        for mdev in claim.mdevs:
            nodes[mdev] = Nodes(vgpus[mdev].vfio_group, vgpus[mdev].vfio_cdev) if mdev in vgpus else Nodes()
    return nodes


def draft(
    request: ClaimRequest, capacity: Capacity, taken: Taken, expires: str | None = None, *, as_they_are: bool = False
) -> Draft:
    """Return the claim, not yet with an id, what it takes, and its placement. `taken`: what other claims take by now.
    `as_they_are`: the devices are the owner's already, so that no rule of placement keeps them from it.
    Raises ClaimConflict, NoCapacity, UnknownDevice."""
    whole, parts = ((), request.devices) if request.is_share else (request.devices, ())
    refuse_taken(whole, parts, taken)
    for cpu in request.exact_cpus:
        if cpu in taken.cpus:
            raise _conflict(f"{CPU}{cpu}", taken.cpus[cpu], taken)
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
        shares=placement.shares,
    )
    uses = _with_shares(uses_of(capacity.inventory, devices, placement.cpus), placement.shares)
    refuse_taken(uses.whole, uses.shared, taken)
    if not placement.shares:  # no part of a GPU of which containers have shares goes to a guest
        refuse_taken([name for name in uses.shared if name in taken.shares], (), taken)
    over = exceeded(capacity.settings.quotas, taken, claim.owner, claim.labels, claim.gpus) if as_they_are else ""
    return Draft(claim, uses, placement, over)


def _existing(placement: Placement, capacity: Capacity, *, cards: bool) -> tuple[ClaimedDevice, ...]:
    """Return the devices with all that must travel with them: their cards, and the endpoints in their groups.
    `cards`: False for functions that their owner has already, whose cards may be divided among several owners."""
    mdevs = [device for device in placement.devices if isinstance(device, Uuid)]
    for mdev in mdevs:
        if mdev not in capacity.parents:
            raise UnknownDevice(f"there is no mediated device {mdev} here", next_command="vfioctl vgpu list")
    mediated = (ClaimedDevice(capacity.parents[mdev], mdev) for mdev in dict.fromkeys(mdevs))
    functions, scope = capacity.inventory.by_address, scope_of(capacity.inventory, placement.functions, cards=cards)
    together = dict.fromkeys((*scope.asked, *scope.own, *scope.foreign))
    whole = (ClaimedDevice(name, identity=functions[name].identity, asked=name in scope.asked) for name in together)
    return (*whole, *mediated)


def _created(plan: Plan) -> tuple[ClaimedDevice, ...]:
    mediated = (ClaimedDevice(place_and_type(change)[0], Uuid(change.name)) for change in plan.changes_of(MDEV))
    vfs = (ClaimedDevice(PciAddress(change.subject)) for change in plan.changes_of(VGPU_TYPE))
    return (*mediated, *vfs)


def refuse_taken(whole: Iterable[str], shared: Iterable[str], taken: Taken) -> None:
    """Raise ClaimConflict for the first device that another claim has, or of which it has a part.
    The tables of the ledger refuse the same. `shared`: devices of which only a part is taken."""
    for device in (*whole, *shared):
        if device in taken.whole:
            raise _conflict(device, taken.whole[device], taken)
    for device in whole:
        if device in taken.shared:
            raise _conflict(device, taken.shared[device][0], taken, whole=False)


def _conflict(resource: str, claim: tuple[str, Owner], taken: Taken, *, whole: bool = True) -> ClaimConflict:
    id_, owner = claim
    return Reservation(resource, f"{CLAIM}{id_}", owner, whole, taken.releases[id_]).conflict()
