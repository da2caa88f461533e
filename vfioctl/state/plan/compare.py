"""Compares a document with a host. Pure: `assert` and `apply` see the same differences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from vfioctl.binding.model.binding import same_driver
from vfioctl.inventory.model.values import PciAddress
from vfioctl.state.model.difference import Difference
from vfioctl.state.model.document import NONE, DeviceState, HostState, Presence, VgpuGoal
from vfioctl.state.model.facts import HostFacts
from vfioctl.state.plan.places import Places
from vfioctl.vgpu.model.vgpu import Vgpu, VgpuState

DEVICE, DRIVER, DRIVER_AT_BOOT = "device", "driver", "driver_at_boot"
VFS, VFS_AT_BOOT = "vfs", "vfs_at_boot"
STATE, PARENT, TYPE, AT_BOOT = "state", "parent", "type", "at_boot"
_YES_NO = {True: "true", False: "false"}


def differences(state: HostState, facts: HostFacts, places: Places) -> tuple[Difference, ...]:
    """What is not as the document says, in its order."""
    found = [d for device in state.devices for d in _of_device(device, facts, places)]
    return (*found, *(d for vgpu in state.vgpus for d in _of_vgpu(vgpu, facts, places)))


def _of_device(device: DeviceState, facts: HostFacts, places: Places) -> Iterator[Difference]:
    place = places[device.address]
    if place.address is None:
        yield Difference(name=device.address, setting=DEVICE, wanted=Presence.PRESENT, found=place.why)
        return
    for setting, wanted, found in _settings(device, facts, place.address):
        alike = same_driver(wanted, found) if setting in (DRIVER, DRIVER_AT_BOOT) else wanted == found
        if wanted is not None and not alike:
            yield Difference(name=device.address, setting=setting, wanted=wanted, found=found)


def _settings(device: DeviceState, facts: HostFacts, address: PciAddress) -> Iterator[tuple[str, str | None, str]]:
    function, at_boot = facts.inventory.by_address[address], facts.devices_at_boot.get(address)
    unknown = function.unknown.get("driver", "")
    yield DRIVER, device.driver, f"unknown: {unknown}" if unknown else function.driver or NONE
    yield DRIVER_AT_BOOT, device.driver_at_boot, facts.damaged.get(address) or (at_boot.driver if at_boot else NONE)
    yield VFS, _text(device.vfs), str(len(function.virtfns))
    damage = facts.damaged_vgpus.get(address)
    yield VFS_AT_BOOT, _text(device.vfs_at_boot), damage or str(facts.vfs_at_boot.get(address, 0))


def _text(number: int | None) -> str | None:
    return None if number is None else str(number)


def parent_of(goal: VgpuGoal, places: Places) -> str | None:
    """The present name of a vGPU's parent; None if it is not found."""
    return places[goal.parent].address if goal.parent in places else goal.parent


def id_of(goal: VgpuGoal, places: Places) -> str | None:
    """The present id of a vGPU; None if that is a VF which is not found."""
    return goal.uuid or parent_of(goal, places)


def existing(goal: VgpuGoal, facts: HostFacts, places: Places) -> Vgpu | None:
    """The vGPU, if it exists."""
    return facts.vgpu_by_id.get(id_of(goal, places) or "")


def _of_vgpu(goal: VgpuGoal, facts: HostFacts, places: Places) -> Iterator[Difference]:
    name = id_of(goal, places)
    vgpu, at_boot = existing(goal, facts, places), name in facts.vgpus_at_boot
    for setting, wanted, found in _vgpu_settings(goal, vgpu, places):
        if wanted != found:
            yield Difference(name=goal.name, setting=setting, wanted=wanted, found=found)
    if goal.at_boot is not None and (damage := facts.damaged_vgpus.get(name or "")):
        yield Difference(name=goal.name, setting=AT_BOOT, wanted=_YES_NO[goal.at_boot], found=damage)
    elif goal.at_boot is not None and at_boot is not goal.at_boot:
        yield Difference(name=goal.name, setting=AT_BOOT, wanted=_YES_NO[goal.at_boot], found=_YES_NO[at_boot])


def _vgpu_settings(goal: VgpuGoal, vgpu: Vgpu | None, places: Places) -> Iterator[tuple[str, str, str]]:
    if vgpu is None or vgpu.state is not VgpuState.LIVE or goal.state is Presence.ABSENT:
        found: str = Presence.ABSENT if vgpu is None else vgpu.state
        yield STATE, goal.state, Presence.PRESENT if found == VgpuState.LIVE else found
        return
    yield PARENT, parent_of(goal, places) or goal.parent, vgpu.parent
    called = goal.type in (vgpu.type, vgpu.type_name) or goal.type.lower() == vgpu.profile.lower() != ""
    yield TYPE, goal.type, goal.type if called else vgpu.profile or vgpu.type
    for name, value in goal.parameters.items():
        present = _parameter(vgpu.attributes, name)
        if present is not None:
            yield name, _in_order(value), _in_order(present)


def _parameter(attributes: Mapping[str, str], name: str) -> str | None:
    """The present value of a parameter; None if the kernel does not show it."""
    listed = attributes.get("vgpu_params", "")
    if "/" in name or name in attributes:
        return attributes.get(name.rpartition("/")[2])
    pairs = dict(pair.strip().split("=", 1) for pair in listed.split(",") if "=" in pair)
    return pairs.get(name) if listed.strip() else None


def _in_order(text: str) -> str:
    """A list of `name=value` in one order: the driver may change it."""
    return ", ".join(sorted(filter(None, map(str.strip, text.split(",")))))
