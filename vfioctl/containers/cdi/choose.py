"""Chooses the devices of a CDI file, and their nodes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from vfioctl.claims.model.cdi import CdiDevice, Node
from vfioctl.claims.model.claim import Claim
from vfioctl.errors import HostError, some_of
from vfioctl.inventory.model.functions import Function, Inventory
from vfioctl.inventory.model.values import Subject
from vfioctl.units import Uuid
from vfioctl.vgpu.model.vgpu import Vgpu

NodeOf = Callable[[Function | Vgpu], str | None]
_OF: Mapping[Node, NodeOf] = {
    Node.GROUP: lambda device: device.vfio_group,
    Node.CDEV: lambda device: device.vfio_cdev,
}


@dataclass(frozen=True)
class Passthrough:
    """The devices that a container could get now."""

    nodes: Mapping[Subject, str]
    companions: Collection[Subject] = ()
    """Functions that only travel with a GPU: its group node gives them too."""


def passthrough(inventory: Inventory, mdevs: Iterable[Vgpu], node: Node) -> Passthrough:
    """Return the functions and mediated devices that have this kind of node."""
    nodes: dict[Subject, str] = {}
    for function in inventory.functions:
        if function.serves_guests and (path := _OF[node](function)):
            nodes[function.address] = path
    for mdev in mdevs:
        if path := _OF[node](mdev):
            nodes[Uuid(mdev.id)] = path
    companions = [f.address for f in inventory.functions if f.address in nodes and _travels(inventory, f)]
    return Passthrough(nodes, frozenset(companions))


def _travels(inventory: Inventory, function: Function) -> bool:
    """Return whether it is no GPU, and shares its card or its group with one that is on VFIO."""
    others = {*inventory.card_of(function.address), *inventory.members_of(function.iommu_group)}
    known = (inventory.by_address[address] for address in others if address in inventory.by_address)
    return not function.is_gpu and any(other.is_gpu and other.on_vfio for other in known)


def every_device(available: Passthrough, node: Node) -> tuple[CdiDevice, ...]:
    """Return all of them. With group nodes a companion has no name of its own: the node of its GPU gives it too."""
    apart = available.companions if node is Node.GROUP else ()
    return tuple(CdiDevice(subject, path) for subject, path in available.nodes.items() if subject not in apart)


def claimed(claim: Claim, node: Node) -> tuple[Subject, ...]:
    """Return the devices of a live claim that get names: with cdev nodes its companions too."""
    if not claim.is_live:
        return ()
    return tuple(device.subject for device in claim.devices if device.asked or node is Node.CDEV)


def devices_of(claim: Claim, available: Passthrough, node: Node) -> tuple[CdiDevice, ...]:
    """Return the devices of one claim. Raises HostError if a device that it asked for has no node."""
    asked = {device.subject for device in claim.devices if device.asked}
    wanted = claimed(claim, node)
    missing = [subject for subject in wanted if subject in asked and subject not in available.nodes]
    if missing:
        raise HostError(
            f"{some_of(missing)} {'has' if len(missing) == 1 else 'have'} no {node} node of VFIO",
            hint="it is not bound to VFIO, or this kernel has no such nodes: vfioctl inventory shows both",
            facts={"devices": [str(subject) for subject in missing]},
        )
    return tuple(CdiDevice(subject, available.nodes[subject]) for subject in wanted if subject in available.nodes)


def of_claims(claims: Sequence[Claim], available: Passthrough, node: Node) -> tuple[CdiDevice, ...]:
    """Return the devices of all live claims, without those that have no node now."""
    wanted = dict.fromkeys(subject for claim in claims for subject in claimed(claim, node))
    return tuple(CdiDevice(subject, available.nodes[subject]) for subject in wanted if subject in available.nodes)


def with_claim(before: Sequence[CdiDevice], claim: Claim, available: Passthrough, node: Node) -> tuple[CdiDevice, ...]:
    """Return the devices of a file with those of one claim, or without them when it is over.

    The other devices of the file stay, with the nodes that they have now; those that have none go.
    """
    of_it = {device.subject for device in claim.devices}
    others = [device.subject for device in before if device.subject not in of_it]
    kept = [CdiDevice(subject, available.nodes[subject]) for subject in others if subject in available.nodes]
    return (*kept, *(devices_of(claim, available, node) if claim.is_live else ()))


def notes(devices: Sequence[CdiDevice]) -> Iterator[str]:
    """Yield what the user should know about the names."""
    by_node: dict[str, list[CdiDevice]] = {}
    for device in devices:
        by_node.setdefault(device.node, []).append(device)
    for node, those in by_node.items():
        if len(those) > 1:
            names = " and ".join(device.name for device in those)
            yield f"{names} share {node}: a container with one of them has all of them, so give it only one"
