"""Finds the devices of a document on a host. A device that could be another one is not taken for it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from vfioctl.binding.model.definition import DeviceDefinition, Found, locate_all
from vfioctl.inventory.model.functions import Function, Inventory
from vfioctl.inventory.model.values import PciAddress
from vfioctl.state.model.document import DeviceState, HostState, VfPlace

Places = Mapping[str, Found]
"""Where each device is, by its name in the document."""


def places_of(state: HostState, inventory: Inventory) -> Places:
    """Where each device of the document is now, or why it is not known."""
    known: dict[str, DeviceDefinition] = {d.address: _as_definition(d) for d in state.devices if d.identity}
    found = {name: _if_read(name, place, inventory) for name, place in locate_all(known, inventory).items()}
    vfs: dict[str, Found] = {d.address: _vf(d.vf, found[d.vf.of], inventory) for d in state.devices if d.vf}
    return {**found, **vfs}


def _as_definition(device: DeviceState) -> DeviceDefinition:
    assert device.identity is not None
    return DeviceDefinition(address=device.address, driver="vfio-pci", identity=device.identity)


def _if_read(name: str, place: Found, inventory: Inventory) -> Found:
    """Nobody is told that a device does not exist which may only not have been read."""
    if place.address is not None or not inventory.unread:
        return place
    why = inventory.unread.get(PciAddress(name))
    unread = ", ".join(list(inventory.unread)[:4])
    return replace(place, why=f"it could not be read: {why}" if why else f"{place.why}, but {unread} could not be read")


def _vf(vf: VfPlace, pf: Found, inventory: Inventory) -> Found:
    if pf.address is None:
        return Found(None, f"its PF {vf.of}: {pf.why}")
    vfs = numbered_vfs(inventory.by_address[pf.address])
    if vf.number >= len(vfs):
        return Found(None, f"{pf.address} has {len(vfs)} VFs now")
    address = vfs[vf.number]
    if address not in inventory.by_address:
        return Found(None, f"it could not be read: {inventory.unread.get(address, 'it has gone meanwhile')}")
    return Found(address)


def numbered_vfs(physical: Function) -> list[PciAddress]:
    """The VFs of a PF by number: the addresses of VFs rise with their numbers (First VF Offset, VF Stride)."""
    return sorted(physical.virtfns, key=lambda address: address.order)


def moved(state: HostState, places: Places) -> tuple[str, ...]:
    """Sentences about devices that are found, but differ from their names or identities."""
    found = ((device.address, places[device.address]) for device in state.devices)
    return tuple(f"{name}: {place.why}" for name, place in found if place.address and place.why)
