"""Says what other programs bind at boot on a host as it is now. May not do input or output. Imports no definition of
vfioctl: most hosts have none, and importing it takes long."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from vfioctl.binding.model.given_ids import ids_in
from vfioctl.inventory.model.functions import Function, Inventory
from vfioctl.inventory.model.values import PciAddress
from vfioctl.persist.model.persistent import Owner, Persistent, State


def overridden(overrides: Mapping[str, tuple[str, str]], inventory: Inventory) -> Iterator[Persistent]:
    """Yield the devices that driverctl binds at boot. `overrides`: its file and the driver, by address."""
    for address, (file, driver) in overrides.items():
        function = inventory.by_address.get(PciAddress(address))
        why = "" if function else "no such device is on this host"
        yield Persistent(name=address, goal=driver, owner=Owner.DRIVERCTL, state=State.FOREIGN, file=file, why=why)


def taken_by(ids: str, inventory: Inventory) -> list[Function]:
    """Return the functions that vfio-pci takes at boot because of these ids."""
    given = tuple(ids_in(ids))
    return [f for f in inventory.functions if any(known.fits(f) for known in given)]


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
