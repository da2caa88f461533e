"""Chooses the devices of a CDI file and their nodes, and finds where a file differs from that. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from vfioctl.claims.model.cdi import CDEV_NODE, KIND, CdiDevice, Node, subject_called
from vfioctl.claims.model.claim import Claim
from vfioctl.claims.model.difference import Difference, DifferenceKind, Fix
from vfioctl.containers.cdi.files import CdiFileFound
from vfioctl.containers.cdi.intent import CdiIntent
from vfioctl.errors import HostError, some_of
from vfioctl.inventory.model.functions import Function, Inventory
from vfioctl.inventory.model.values import Subject
from vfioctl.units import Uuid
from vfioctl.vgpu.model.vgpu import Vgpu


@dataclass(frozen=True)
class Passthrough:
    """The devices that a container could get now."""

    nodes: Mapping[Subject, str]
    companions: Collection[Subject] = ()
    """Functions that only travel with a GPU: its group node gives them too."""

    def named(self, subjects: Iterable[Subject]) -> tuple[CdiDevice, ...]:
        """Return those of these devices that have a node, each once."""
        return tuple(CdiDevice(name, self.nodes[name]) for name in dict.fromkeys(subjects) if name in self.nodes)


def passthrough(inventory: Inventory, mdevs: Iterable[Vgpu], node: Node) -> Passthrough:
    """Return the functions and mediated devices that have this kind of node."""
    devices: list[tuple[Subject, Function | Vgpu]] = [(f.address, f) for f in inventory.functions if f.serves_guests]
    devices += [(Uuid(mdev.id), mdev) for mdev in mdevs]
    paths = ((subject, device.vfio_group if node is Node.GROUP else device.vfio_cdev) for subject, device in devices)
    nodes = {subject: path for subject, path in paths if path}
    companions = (f.address for f in inventory.functions if f.address in nodes and _travels(inventory, f))
    return Passthrough(nodes, frozenset(companions))


def _travels(inventory: Inventory, function: Function) -> bool:
    """Return whether it is no GPU, and shares its card or its group with one that is on VFIO."""
    others = {*inventory.card_of(function.address), *inventory.members_of(function.iommu_group)}
    known = (inventory.by_address[address] for address in others if address in inventory.by_address)
    return not function.is_gpu and any(other.is_gpu and other.on_vfio for other in known)


def every_device(available: Passthrough, node: Node) -> tuple[CdiDevice, ...]:
    """Return all of them. With group nodes a companion has no name of its own: the node of its GPU gives it too."""
    apart = available.companions if node is Node.GROUP else ()
    return available.named(subject for subject in available.nodes if subject not in apart)


def claimed(claim: Claim, node: Node) -> tuple[Subject, ...]:
    """Return the devices of a live claim that get names: with cdev nodes its companions too."""
    if not claim.is_live:
        return ()
    return tuple(device.subject for device in claim.devices if device.asked or node is Node.CDEV)


def devices_of(claim: Claim, available: Passthrough, node: Node) -> tuple[CdiDevice, ...]:
    """Return the devices of one claim. Raises HostError if a device that it asked for has no node, and for a claim of
    GPUs that stay with their host driver."""
    if claim.shares:
        names = ", ".join(share.cdi for share in claim.shares if share.cdi)
        raise HostError(
            f"claim {claim.id} has GPUs with their host driver, not devices on VFIO",
            hint=f"give the container {names}, as NVIDIA's container toolkit names them" if names else "",
        )
    asked = {device.subject for device in claim.devices if device.asked}
    wanted = claimed(claim, node)
    missing = [subject for subject in wanted if subject in asked and subject not in available.nodes]
    if missing:
        raise HostError(
            f"{some_of(missing)} {'has' if len(missing) == 1 else 'have'} no {node} node of VFIO",
            hint="it is not bound to VFIO, or this kernel has no such nodes: vfioctl inventory shows both",
            facts={"devices": [str(subject) for subject in missing]},
        )
    return available.named(wanted)


def of_claims(claims: Sequence[Claim], available: Passthrough, node: Node) -> tuple[CdiDevice, ...]:
    """Return the devices of all live claims, without those that have no node now."""
    return available.named(subject for claim in claims for subject in claimed(claim, node))


def without_node(claims: Sequence[Claim], available: Passthrough) -> tuple[Subject, ...]:
    """Return the devices that claims asked for, and that have no node now."""
    asked = dict.fromkeys(device.subject for claim in claims for device in claim.devices if device.asked)
    return tuple(subject for subject in asked if subject not in available.nodes)


def with_claim(before: Sequence[CdiDevice], claim: Claim, available: Passthrough, node: Node) -> tuple[CdiDevice, ...]:
    """Return the devices of a file with those of one claim, or without them when it is over.
    The other devices of the file stay, with the nodes that they have now; those that have none go."""
    of_it = {device.subject for device in claim.devices}
    kept = available.named(device.subject for device in before if device.subject not in of_it)
    return (*kept, *(devices_of(claim, available, node) if claim.is_live else ()))


def notes(devices: Sequence[CdiDevice], missing: Sequence[Subject] = ()) -> Iterator[str]:
    """Yield what the user should know about the names. `missing`: claimed devices without a node."""
    for subject in missing:
        yield f"{subject} is claimed and has no node of VFIO, so it is not in the file"
    by_node: dict[str, list[CdiDevice]] = {}
    for device in devices:
        by_node.setdefault(device.node, []).append(device)
    for node, those in by_node.items():
        if len(those) > 1:
            names = " and ".join(device.name for device in those)
            yield f"{names} share {node}: a container with one of them has all of them, so give it only one"


def inferred(file: CdiFileFound, held: Collection[str], available: Passthrough) -> CdiIntent:
    """Return the request that a file's content suggests: all devices on VFIO, if it has some that no claim has."""
    subjects = [subject_called(name) for name in file.devices]
    everything = any(subject in available.nodes and subject not in held for subject in subjects)
    return CdiIntent(kind=file.kind, node=node_of(file), everything=everything)


def node_of(file: CdiFileFound) -> Node:
    """Return which node of its devices a file has."""
    nodes = [node for of_device in file.devices.values() for node in of_device]
    return Node.CDEV if any(CDEV_NODE.fullmatch(node) for node in nodes) else Node.GROUP


def differing(
    file: CdiFileFound, intent: CdiIntent, live: Sequence[Claim], available: Passthrough
) -> Iterator[Difference]:
    """Yield the devices that a file lacks, should not have, or gives a wrong node. `live`: claims not yet ended."""
    holders: dict[Subject, str] = {device.subject: claim.id for claim in live for device in claim.devices}
    listed = {subject_called(name): nodes[0] for name, nodes in file.devices.items() if nodes}
    devices = _wanted(intent, tuple(listed), live, available)
    wanted = {device.subject: device.node for device in devices}
    for subject in sorted({*listed, *wanted}, key=lambda subject: subject.order):
        node, right = listed.get(subject), wanted.get(subject)
        if node == right:
            continue
        if node is None:
            why = f"claim {holders[subject]} has it" if subject in holders else "it is on VFIO"
            words = f"{file.path} {'does not name it' if listed else 'is not there'}, and {why}"
        elif right is None and subject in available.nodes:
            words = f"{file.path} names it, and no claim has it"
        else:
            words = f"{file.path} says that its node is {node}, and it is {right or 'none'}"
        yield Difference(DifferenceKind.CDI, words, command(intent), device=str(subject), fix=Fix.RENEW)


def _wanted(
    intent: CdiIntent, listed: Sequence[Subject], claims: Sequence[Claim], available: Passthrough
) -> tuple[CdiDevice, ...]:
    if intent.everything:
        return every_device(available, intent.node)
    if not intent.claim:
        return of_claims(claims, available, intent.node)
    # other claims' devices are in it only if they were asked for
    own = [subject for claim in claims if claim.id == intent.claim for subject in claimed(claim, intent.node)]
    return available.named((*listed, *own))


def command(intent: CdiIntent) -> str:
    """Return the command that writes the file."""
    options = (
        f" --claim {intent.claim}" if intent.claim else "",
        " --all" if intent.everything else "",
        f" --kind {intent.kind}" if intent.kind != KIND else "",
        f" --node {intent.node}" if intent.node is not Node.GROUP else "",
    )
    return f"vfioctl cdi generate{''.join(options)}"
