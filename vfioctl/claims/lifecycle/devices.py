"""The devices of a claim: those that names mean, what it takes of them, and their device files. May not write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from vfioctl.claims.ledger.ledger import Uses
from vfioctl.claims.ledger.rows import CPU
from vfioctl.claims.model.claim import Claim, ClaimedDevice, Undo
from vfioctl.claims.model.documents import Nodes
from vfioctl.inventory.api import InventoryApi
from vfioctl.inventory.model.functions import Function, Inventory
from vfioctl.inventory.model.scope import scope_of
from vfioctl.inventory.model.values import PciAddress, Subject
from vfioctl.units import UUID, Uuid

if TYPE_CHECKING:
    from vfioctl.session import Session


def subjects(inventory: Inventory, names: Sequence[str]) -> tuple[Subject, ...]:
    """Return the devices that names mean: a UUID is that of a mediated device. Raises UnknownDevice, BadAddress."""
    named: list[Subject] = []
    for name in names:
        named += [Uuid(name)] if UUID.fullmatch(name) else InventoryApi.chosen(inventory, [name])
    return tuple(dict.fromkeys(named))


def whole_functions(
    inventory: Inventory, asked: Sequence[PciAddress], *, cards: bool = True
) -> tuple[ClaimedDevice, ...]:
    """Return the functions with all that must travel with them: their cards, and the endpoints in their groups.

    `cards`: False for functions that their owner has already, whose cards may be divided among several owners.
    """
    scope = scope_of(inventory, asked, cards=cards)
    others = [address for address in (*scope.own, *scope.foreign) if address not in scope.asked]
    return tuple(
        ClaimedDevice(other, identity=inventory.by_address[other].identity, asked=other in scope.asked)
        for other in (*scope.asked, *others)
    )


def mediated(parents: Mapping[Uuid, str], *, undo: Undo = Undo.NOTHING) -> tuple[ClaimedDevice, ...]:
    """Return mediated devices, by their parents."""
    return tuple(ClaimedDevice(parent, mdev, undo=undo) for mdev, parent in parents.items())


def uses_of(inventory: Inventory, devices: Iterable[ClaimedDevice], cpus: Iterable[int] = ()) -> Uses:
    """Return the resources that a claim of these devices and CPUs takes.

    A VF takes a part of its PF, and a mediated device a part of its parent, which may be a VF.
    """
    devices = tuple(devices)
    whole: list[str] = [device.subject for device in devices]
    functions: dict[str, Function] = {function.address: function for function in inventory.functions}
    above: list[str] = []
    for device in devices:
        if device.mdev:
            above.append(device.address)
        function = functions.get(device.address)
        if function and function.physfn:
            above.append(function.physfn)
    shared = (name for name in dict.fromkeys(above) if name not in whole)
    return Uses((*whole, *(f"{CPU}{number}" for number in cpus)), tuple(shared))


def nodes_of(session: Session, claim: Claim) -> Mapping[str, Nodes]:
    """Return the VFIO device files of the claim's devices, by address or UUID, as they are now."""
    functions = InventoryApi(session).inventory(nvml=False).functions
    ours = {device.subject for device in claim.devices}
    nodes: dict[str, Nodes] = {f.address: Nodes(f.vfio_group, f.vfio_cdev) for f in functions if f.address in ours}
    if claim.mdevs:
        from vfioctl.vgpu.api import VgpuApi

        vgpus = {vgpu.id: vgpu for vgpu in VgpuApi(session).vgpus().instances}
        for mdev in claim.mdevs:
            nodes[mdev] = Nodes(vgpus[mdev].vfio_group, vgpus[mdev].vfio_cdev) if mdev in vgpus else Nodes()
    return nodes
