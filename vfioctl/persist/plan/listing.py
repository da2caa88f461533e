"""Compares what is persistent with the host as it is now. May not do input or output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from vfioctl.binding.model.binding import same_driver
from vfioctl.binding.model.definition import DeviceDefinition, Found, locate_all
from vfioctl.inventory.model.functions import Function, Inventory
from vfioctl.inventory.model.values import PciAddress
from vfioctl.persist.model.persistent import Owner, Persistent, State


def devices(
    definitions: Mapping[str, DeviceDefinition], damaged: Mapping[str, str], inventory: Inventory
) -> Iterator[Persistent]:
    """Yield the devices that vfioctl binds at boot."""
    places = locate_all(definitions, inventory)
    for file, definition in definitions.items():
        state, why = _state(definition, places[file], inventory)
        now = places[file].address
        yield Persistent(
            name=definition.address,
            goal=definition.driver,
            owner=Owner.VFIOCTL,
            state=state,
            file=file,
            now=now if now and now != definition.address else "",
            why=why,
        )
    for file, why in damaged.items():
        name = file.rpartition("/")[2].removesuffix(".toml")
        yield Persistent(name=name, goal="unknown", owner=Owner.VFIOCTL, state=State.FAILED, file=file, why=why)


def _state(definition: DeviceDefinition, place: Found, inventory: Inventory) -> tuple[State, str]:
    if place.address is None:
        return State.FAILED, place.why
    function = inventory.by_address[place.address]
    if not same_driver(definition.driver, function.driver):
        now = function.driver or "no driver"
        return State.ABSENT, "; ".join(filter(None, (place.why, f"it is on {now}")))
    return (State.MOVED if place.address != definition.address else State.READY), place.why


def beside(file: str, places: Mapping[str, Found], inventory: Inventory) -> list[str]:
    """Return the definitions of devices in the same IOMMU group as that of `file`, itself included: a guest gets a
    group whole, so they are bound together."""

    def group(name: str) -> int | None:
        address = places[name].address
        return inventory.by_address[address].iommu_group if address else None

    own = group(file)
    return [name for name in places if name == file or (own is not None and group(name) == own)]


def overridden(overrides: Mapping[str, tuple[str, str]], inventory: Inventory) -> Iterator[Persistent]:
    """Yield the devices that driverctl binds at boot. `overrides`: its file and the driver, by address."""
    for address, (file, driver) in overrides.items():
        function = inventory.by_address.get(PciAddress(address))
        why = "" if function else "no such device is on this host"
        yield Persistent(name=address, goal=driver, owner=Owner.DRIVERCTL, state=State.FOREIGN, file=file, why=why)


def taken_by(ids: str, inventory: Inventory) -> list[Function]:
    """Return the functions that vfio-pci takes at boot because of these ids."""
    return [f for f in inventory.functions if any(_fits(f, entry) for entry in ids.split(","))]


def _fits(function: Function, entry: str) -> bool:
    """Match `VENDOR:DEVICE[:SUBVENDOR[:SUBDEVICE[:CLASS[:MASK]]]]`, as vfio_pci_fill_ids does; ffffffff is any."""
    parts = entry.lower().split(":")
    known = (function.vendor_id, function.device_id, function.subsystem_vendor_id, function.subsystem_device_id)
    try:
        wanted = [int(part, 16) for part in parts]
    except ValueError:
        return False
    any_id = 0xFFFFFFFF
    ids = all(w in (any_id, int(k, 16)) for w, k in zip(wanted, known, strict=False)) and len(wanted) >= 2
    if len(wanted) > 4:
        mask = wanted[5] if len(wanted) > 5 else 0
        return ids and (int(function.class_code, 16) & mask) == (wanted[4] & mask)
    return ids


def by_ids(owner: Owner, file: str, ids: str, inventory: Inventory) -> Persistent:
    """The devices that vfio-pci takes at boot because of ids: all of a model, also one that is added later."""
    taken = ", ".join(function.address for function in taken_by(ids, inventory)) or "no device here"
    return Persistent(
        name=ids[:60],
        goal="vfio-pci",
        owner=owner,
        state=State.FOREIGN,
        file=file,
        why=f"takes every device with these ids: {taken}",
    )
