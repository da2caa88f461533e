"""Makes the document of a host as it is now. Pure. It has the GPUs and their companions, what is on VFIO now or at
boot, PFs with VFs, and vGPUs with the functions that they are on. Other VFs are only counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from pydantic import ValidationError

from vfioctl.binding.model.definition import identity_of
from vfioctl.core.value import Value, first_problem
from vfioctl.inventory.model.functions import Function, Inventory
from vfioctl.inventory.model.scope import in_order
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.protocol import PCI_ADDRESS
from vfioctl.state.model.document import NONE, DeviceState, HostState, Presence, VfPlace, VgpuGoal
from vfioctl.state.model.facts import HostFacts
from vfioctl.state.plan.places import numbered_vfs
from vfioctl.units import UUID, Uuid
from vfioctl.vgpu.model.vgpu import Dialect, Vgpu, VgpuState

Entry = TypeVar("Entry", bound=Value)
_KNOWN_BY_ID = (Dialect.MDEV, Dialect.VENDOR)
"""The dialects whose vGPUs are created one by one."""


def present(facts: HostFacts) -> tuple[HostState, tuple[str, ...]]:
    """The document, and sentences about what it cannot have."""
    left: list[str] = []
    vgpus = [*_live(facts, left), *_defined(facts, left)]
    parents = {PciAddress(vgpu.parent) for vgpu in vgpus if PCI_ADDRESS.fullmatch(vgpu.parent)}
    shown = _shown(facts, parents & facts.inventory.by_address.keys())
    devices = [d for a in shown if (d := _device(facts.inventory.by_address[a], facts, set(shown), left))]
    named = {device.address for device in devices}
    kept = [vgpu for vgpu in vgpus if ":" not in vgpu.parent or vgpu.parent in named]
    left += (f"{vgpu.name} is left out: its parent {vgpu.parent} is not there" for vgpu in vgpus if vgpu not in kept)
    left += (f"{address} could not be read: {why}" for address, why in facts.inventory.unread.items())
    lost = {**facts.damaged, **facts.damaged_vgpus, **facts.missing}
    left += (f"what vfioctl restores of {name} at boot is left out: {why}" for name, why in lost.items())
    return HostState(version=1, devices=tuple(devices), vgpus=tuple(kept)), tuple(left)


def _shown(facts: HostFacts, parents: Iterable[PciAddress]) -> tuple[PciAddress, ...]:
    inventory = facts.inventory
    gpus = [gpu for gpu in inventory.gpus if not gpu.is_vf]
    wanted = {f.address for f in (*gpus, *(f for f in inventory.functions if f.on_vfio or f.virtfns))}
    wanted |= {a for gpu in gpus for a in gpu.companions}
    wanted |= {*facts.devices_at_boot, *facts.vfs_at_boot, *parents}
    wanted |= {pf for a in set(wanted) for pf in _physical(inventory, a)}
    return in_order(a for a in wanted if a in inventory.by_address and not inventory.by_address[a].is_bridge)


def _physical(inventory: Inventory, address: PciAddress) -> tuple[PciAddress, ...]:
    function = inventory.by_address.get(address)
    return (function.physfn,) if function and function.physfn else ()


def _device(function: Function, facts: HostFacts, shown: set[PciAddress], left: list[str]) -> DeviceState | None:
    address, inventory = function.address, facts.inventory
    at_boot, damaged = facts.devices_at_boot.get(address), address in facts.damaged
    has_vfs = bool(function.virtfns or function.sriov_totalvfs or address in facts.vfs_at_boot)
    number = _number(inventory, function, shown)

    def made() -> DeviceState:
        return DeviceState(
            address=address,
            driver=None if "driver" in function.unknown else function.driver or NONE,
            driver_at_boot=None if damaged else at_boot.driver if at_boot else NONE,
            boot_display=function.boot_vga and function.on_vfio,
            vfs=len(function.virtfns) if has_vfs else None,
            vfs_at_boot=facts.vfs_at_boot.get(address, 0) if has_vfs and address not in facts.damaged_vgpus else None,
            vf=number,
            identity=None if number else identity_of(inventory, function),
        )

    try:
        return made()
    except ValidationError as error:
        left.append(f"{address} is left out: {first_problem(error)}")
        return None


def _number(inventory: Inventory, function: Function, shown: set[PciAddress]) -> VfPlace | None:
    pf = inventory.by_address.get(function.physfn) if function.physfn else None
    if pf is None or pf.address not in shown or function.address not in pf.virtfns:
        return None
    return VfPlace(of=pf.address, number=numbered_vfs(pf).index(function.address))


def _live(facts: HostFacts, left: list[str]) -> Iterator[VgpuGoal]:
    for vgpu in facts.vgpus:
        if vgpu.state is VgpuState.LIVE and vgpu.dialect in _KNOWN_BY_ID:
            yield from _goal(vgpu, facts, left)
        elif vgpu.dialect in _KNOWN_BY_ID:
            left.append(f"{vgpu.id} is left out: it is {vgpu.state}")


def _goal(vgpu: Vgpu, facts: HostFacts, left: list[str]) -> Iterator[VgpuGoal]:
    kind = vgpu.type if vgpu.dialect is Dialect.MDEV else vgpu.profile or vgpu.type_name or vgpu.type
    at_boot = None if vgpu.id in facts.damaged_vgpus else vgpu.id in facts.vgpus_at_boot
    try:
        yield VgpuGoal(
            uuid=_uuid(vgpu.id), parent=vgpu.parent, type=kind, at_boot=at_boot, parameters=dict(vgpu.parameters)
        )
    except ValidationError as error:
        left.append(f"{vgpu.id} is left out: {first_problem(error)}")


def _defined(facts: HostFacts, left: list[str]) -> Iterator[VgpuGoal]:
    """What is created at each boot, and does not exist now."""
    absent = ((name, intent) for name, intent in facts.vgpus_at_boot.items() if name not in facts.vgpu_by_id)
    for name, intent in absent:
        try:
            yield VgpuGoal(
                uuid=_uuid(name), parent=intent.parent or name, type=intent.type, state=Presence.ABSENT, at_boot=True
            )
        except ValidationError as error:
            left.append(f"{name} is left out: {first_problem(error)}")


def _uuid(name: str) -> Uuid | None:
    return Uuid(name) if UUID.fullmatch(name) else None
