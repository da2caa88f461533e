"""Plans what a claim needs of its devices, and what undoes it. Each is one plan of another subsystem, or none."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from vfioctl.claims.model.claim import LABEL, Claim, ClaimedDevice, Undo
from vfioctl.claims.model.difference import share_difference
from vfioctl.errors import ClaimConflict
from vfioctl.inventory.api import InventoryApi
from vfioctl.inventory.model.preconditions import refuse_untyped
from vfioctl.inventory.model.scope import scope_of
from vfioctl.inventory.model.values import PciAddress

if TYPE_CHECKING:
    from vfioctl.binding.api import BindingApi
    from vfioctl.core.change import Plan
    from vfioctl.inventory.model.functions import Inventory
    from vfioctl.placement.model.capacity import Capacity
    from vfioctl.session import Session
    from vfioctl.vgpu.api import VgpuApi
    from vfioctl.vgpu.model.vgpu import Made, Vgpus


def plan_needed(session: Session, claim: Claim, capacity: Capacity, *, bind: bool) -> Plan | None:
    """Return the plan that creates the claim's vGPUs or binds its functions; None if they are ready, and free.
    Raises DeviceInUse, and HostError for a VF of NVIDIA's driver that is no vGPU."""
    if capacity.creation:
        return capacity.creation.plan
    inventory = capacity.inventory
    refuse_held(session, claim, inventory, drivers=False)  # binding leaves out those that are on VFIO already
    functions = [inventory.by_address[function] for function in claim.functions]
    if not bind or all(map(inventory.is_ready, functions)):
        return None
    refuse_untyped(functions)
    return _binding(session).plan_bind(claim.functions)


def plans_again(session: Session, claim: Claim, *, bind: bool = False) -> tuple[Plan, ...]:
    """Return the plans that bind again what the claim had bound, and create the vGPUs that it has lost.
    `bind`: also bind the functions that were ready for a guest before the claim, and are not now. Raises DeviceInUse;
    ClaimConflict if a device is gone or is another one, or a vGPU cannot be created as it was."""
    named = [device for device in claim.devices if not device.mdev]
    addresses = [*(device.address for device in named), *(share.address for share in claim.shares)]
    near = None if vgpus_of([claim]) else addresses  # else parents count, too
    asks_nvml = bool(claim.shares) and claim.boot_id != session.boot_id  # GPUs may have changed places
    inventory = InventoryApi(session).inventory(nvml=asks_nvml, near=near)
    by_address = inventory.by_address
    for device in named:
        function = by_address.get(PciAddress(device.address))
        if function is None or device.identity not in ("", function.identity):
            raise _cannot_restore(claim, f"{device.address} is not the device of claim {claim.id}")
    for share in claim.shares:
        if found := share_difference(share, by_address.get(PciAddress(share.address))):
            raise _cannot_restore(claim, f"{share.address} of claim {claim.id}: {found[1]}")
    vgpus = _plans_of_vgpus(session, claim, inventory)
    bound = {device.address for device in claim.devices if device.undo is Undo.UNBIND}
    created = {device.address for device in claim.devices if device.undo is Undo.REMOVE}
    left = {address for address in bound if not by_address[PciAddress(address)].on_vfio}
    again = [
        function
        for function in claim.functions
        if (function in bound and left.intersection(_with_companions(inventory, function)))
        or (bind and function not in created and not inventory.is_ready(by_address[function]))
    ]
    return (*([_binding(session).plan_bind(again)] if again else []), *vgpus)


def _with_companions(inventory: Inventory, address: PciAddress) -> Sequence[str]:
    scope = scope_of(inventory, [address])
    return [*scope.own, *scope.foreign]


def _plans_of_vgpus(session: Session, claim: Claim, inventory: Inventory) -> list[Plan]:
    """Return the plans that create the claim's lost vGPUs: one for those of one parent and type."""
    api = _vgpus(session)
    lost = MissingVgpus(api, inventory, [claim])
    alike: dict[Made, list[str]] = {}
    for name in lost.names:
        if why := lost.why_not(name):
            raise _cannot_restore(claim, f"vGPU {name} of claim {claim.id} cannot be created again: {why}")
        alike.setdefault(lost.made[name], []).append(name)
    return [
        api.plan_create(
            made.type,
            parent=made.parent,
            count=len(names),
            uuids=[name for name in names if name != made.parent],
            parameters=made.parameters,
        )
        for made, names in alike.items()
    ]


def _cannot_restore(claim: Claim, words: str) -> ClaimConflict:
    return ClaimConflict(words, hint="release the claim", next_command=f"vfioctl claim release {claim.id}")


def plan_undo(session: Session, claim: Claim, *, unchanged_in_use: bool = False) -> Plan | None:
    """Return the plan that makes the claim's devices what they were before; None if that needs no change.
    What was changed before a reboot is undone already, and only what a guest has now is in use. Raises DeviceInUse;
    with `unchanged_in_use` not for devices that need no change in this boot."""
    inventory = InventoryApi(session).inventory(near=claim.functions)
    is_of_this_boot = claim.boot_id == session.boot_id
    if is_of_this_boot:
        ours = {device.address for device in claim.devices if device.undo is Undo.UNBIND}
        if bound := [f.address for f in inventory.functions if f.address in ours and f.on_vfio]:
            return _binding(session).plan_unbind(bound)
        made = [device.subject for device in claim.devices if device.undo is Undo.REMOVE]
        existing = _existing(_vgpus(session).vgpus()) if made else ()
        if left := [name for name in made if name in existing]:
            return _vgpus(session).plan_remove(left)
    if not unchanged_in_use or (LABEL in claim.labels and not is_of_this_boot):
        refuse_held(session, claim, inventory, drivers=is_of_this_boot)
    return None


def _existing(vgpus: Vgpus) -> Collection[str]:
    return {vgpu.id for vgpu in vgpus.instances if vgpu.state != "defined"}


def refuse_held(session: Session, claim: Claim, inventory: Inventory, *, drivers: bool) -> None:
    """Raise DeviceInUse if a process has a device of the claim open.
    `drivers`: also one that is with its host driver; services that only monitor it do not count."""
    from vfioctl.inventory.model.preconditions import refuse
    from vfioctl.placement.api import PlacementApi

    functions = [inventory.by_address[function] for function in claim.functions if function in inventory.by_address]
    refuse(PlacementApi(session).holders(functions, claim.mdevs, inventory, drivers=drivers), functions)


# imported late: who only chooses devices, as for a domain that is built, needs neither


def _binding(session: Session) -> BindingApi:
    from vfioctl.binding.api import BindingApi

    return BindingApi(session)


def _vgpus(session: Session) -> VgpuApi:
    from vfioctl.vgpu.api import VgpuApi

    return VgpuApi(session)


def vgpus_of(claims: Iterable[Claim]) -> list[ClaimedDevice]:
    """Return the vGPUs of claims that may be lost: mediated devices, and what was created for the claim."""
    return [device for claim in claims for device in claim.devices if device.mdev or device.undo is Undo.REMOVE]


class MissingVgpus:
    """The vGPUs that claims lost, to a reboot or by hand, and whether they can be created as they were: parent and type
    are the journal's, and the parent must be the same device. `vgpus`: those that exist, if they were just read."""

    def __init__(self, api: VgpuApi, inventory: Inventory, claims: Iterable[Claim], vgpus: Vgpus | None = None) -> None:
        self._api, self._functions, self._vgpus = api, inventory.by_address, vgpus
        self._of_claims = {str(device.subject): device for device in vgpus_of(claims)}

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Their UUIDs, and the addresses of VFs that are no vGPUs any more. VFs that are gone are not created again."""
        perhaps = [name for name, device in self._of_claims.items() if device.mdev or device.address in self._functions]
        existing = _existing(self._found) if perhaps else ()
        return tuple(name for name in perhaps if name not in existing)

    @cached_property
    def made(self) -> Mapping[str, Made]:
        """How they were created, by name."""
        return self._api.made(self.names)

    def words(self, name: str) -> str:
        """Return what it was."""
        made = self.made.get(name)
        return f"{made.type} on {made.parent}" if made else ""

    def why_not(self, name: str) -> str:
        """Return why a vGPU cannot be created again as it was; empty if it can."""
        made = self.made.get(name)
        if made is None:
            return "the journal does not say how it was created"
        function = self._functions.get(PciAddress(made.parent)) if made.identity else None
        if made.parent != self._of_claims[name].address:
            return f"the journal has it on {made.parent}, and the claim on {self._of_claims[name].address}"
        if made.identity and function is None:
            return f"{made.parent}, on which it was, is gone"
        if function and function.identity != made.identity:
            return f"another device is at {made.parent}: {function.identity}, which was {made.identity}"
        offers = [parent.offers for card in self._found.cards for parent in card.parents if parent.name == made.parent]
        if not any(offered.get(made.type) for offered in offers):
            return f"{made.parent} offers no {made.type} now"
        return ""

    @cached_property
    def _found(self) -> Vgpus:
        return self._vgpus or self._api.vgpus()
