"""Finds the devices of a resource among those of a host. Pure. Each has an id that a reboot does not change: of a vGPU
that is created on demand, a UUID that is made of its parent, its type and its number."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple
from uuid import NAMESPACE_URL, uuid5

from vfioctl.inventory.model.functions import Function, Inventory
from vfioctl.inventory.model.values import PciAddress, Subject
from vfioctl.kubelet.model.device import Birth
from vfioctl.kubelet.model.settings import DeviceKind, ResourceSettings
from vfioctl.units import Uuid
from vfioctl.vgpu.model.kinds import MDEV
from vfioctl.vgpu.model.vgpu import FOREIGN, Dialect, Vgpu, VgpuCard, VgpuParent, Vgpus, VgpuState, VgpuType

_VFS = (Dialect.SRIOV, Dialect.XE)
"""Their vGPUs are VFs, all of which are created at once."""
_MOST = 64
"""The most vGPUs of one parent that are listed, whatever a driver reports."""


class Member(NamedTuple):
    """A device of a resource. `parent`: the function, or the parent of the mediated device, which may be none."""

    subject: Subject
    parent: str
    numa_node: int | None
    birth: Birth | None = None
    """How it is created, if it does not exist when a pod gets it."""
    problem: str = ""
    """Why no pod may get it, as far as it shows without the ledger."""


def members(
    resource: ResourceSettings, matching: Collection[str], inventory: Inventory, vgpus: Vgpus
) -> tuple[Member, ...]:
    """Return the devices of a resource. `matching`: the functions that its words mean, by address."""
    if resource.devices in (DeviceKind.PASSTHROUGH, DeviceKind.VF):
        return tuple(map(_whole, _functions(resource, matching, inventory)))
    if resource.devices is DeviceKind.MDEV:
        return tuple(_existing(resource, matching, vgpus))
    return tuple(_created(resource, matching, inventory, vgpus))


def problem_of(resource: ResourceSettings, found: Sequence[Member], vgpus: Vgpus) -> str:
    """Return why a resource has no devices, if that is an error of the configuration."""
    if found or resource.devices is not DeviceKind.VGPU:
        return ""
    cards = [card for card in vgpus.cards if card.called(resource.type)]
    if not cards:
        return f"no card has a vGPU type {resource.type!r}: vfioctl vgpu types lists them"
    if all(card.dialect in _VFS for card in cards):
        return 'the vGPUs of this card are plain VFs: create them with vfioctl sriov set, and use devices = "vf"'
    return ""


def _functions(resource: ResourceSettings, matching: Collection[str], inventory: Inventory) -> Iterator[Function]:
    virtual = resource.devices is DeviceKind.VF
    for function in inventory.functions:
        if not function.is_gpu or function.is_vf != virtual:
            continue
        if function.boot_vga and not resource.match and not function.on_vfio:
            continue  # the host's own display is no device of all GPUs
        if function.address in matching or (function.physfn and function.physfn in matching):
            yield function


def _whole(function: Function) -> Member:
    return Member(function.address, function.address, function.numa_node)


def _existing(resource: ResourceSettings, matching: Collection[str], vgpus: Vgpus) -> Iterator[Member]:
    for vgpu in vgpus.instances:
        is_ours = not resource.match or vgpu.parent in matching or vgpu.card in matching
        is_type = resource.type in ("", vgpu.type, vgpu.type_name, vgpu.profile)
        if vgpu.dialect == MDEV and vgpu.state is not VgpuState.DEFINED and is_ours and is_type:
            problem = "" if vgpu.state is VgpuState.LIVE else f"it is {vgpu.state}"
            yield Member(Uuid(vgpu.id), vgpu.parent, vgpu.numa_node, problem=problem)


def _created(
    resource: ResourceSettings, matching: Collection[str], inventory: Inventory, vgpus: Vgpus
) -> Iterator[Member]:
    for card in vgpus.cards:
        types = card.called(resource.type)
        if not types or card.dialect in _VFS:
            continue
        left = types[0].available.at_most
        there = {vgpu.id for vgpu in vgpus.instances if vgpu.state is VgpuState.LIVE}
        for parent in card.parents:
            if not resource.match or {card.id, parent.name} & {*matching, *resource.match}:
                for member in _on_parent(types[0], card, parent, inventory, vgpus):
                    is_new = member.subject not in there and not member.problem
                    yield member._replace(problem=_full(types[0])) if is_new and left == 0 else member
                    left = left - 1 if left and is_new else left


def _on_parent(
    kind: VgpuType, card: VgpuCard, parent: VgpuParent, inventory: Inventory, vgpus: Vgpus
) -> Iterator[Member]:
    """Yield the vGPUs of a type that there are on a parent, or could be."""
    birth, offered = Birth(kind.id, parent.name), parent.offers.get(kind.id, 0)
    function: Mapping[str, Function] = {f.address: f for f in inventory.functions}
    node = function[parent.name].numa_node if parent.name in function else card.numa_node
    if card.dialect is not Dialect.MDEV:
        there = next((v for v in vgpus.instances if v.id == parent.name and v.state is VgpuState.LIVE), None)
        problem = _unusable(there, kind) if there else "" if offered else _full(kind)
        yield Member(PciAddress(parent.name), parent.name, node, birth, problem)
        return
    existing = {v.id: v for v in vgpus.instances if v.parent == parent.name and v.state is VgpuState.LIVE}
    most = kind.max_instances if len(card.parents) == 1 and kind.max_instances else max(1, len(existing) + offered)
    for number in range(_MOST):
        subject = uuid_of(parent.name, kind.id, number)
        if subject in existing:
            yield Member(subject, parent.name, node, birth, _unusable(existing[subject], kind))
        elif number < most:
            offered -= 1
            yield Member(subject, parent.name, node, birth, "" if offered >= 0 else _full(kind))


def _unusable(vgpu: Vgpu, kind: VgpuType) -> str:
    """Return why no pod may get a vGPU that exists."""
    if vgpu.type != kind.id:
        return f"it is a vGPU of type {vgpu.type}"
    return "somebody else has created it" if vgpu.owner == FOREIGN else ""


def _full(kind: VgpuType) -> str:
    return f"no room for another {kind.id}"


def uuid_of(parent: str, kind: str, number: int) -> Uuid:
    """Return the UUID of the vGPU with this number, from 0, of a type on a parent (RFC 9562, version 5)."""
    return Uuid(str(uuid5(NAMESPACE_URL, f"vfioctl:kubelet/{parent}/{kind}/{number}")))
