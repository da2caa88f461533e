"""Who has devices open that a request could get."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vfioctl.binding.model.conditions import GPU_SERVICES
from vfioctl.errors import VfioctlError, some_of
from vfioctl.inventory.model.scope import scope_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vfioctl.inventory.api import InventoryApi
    from vfioctl.inventory.model.functions import Function, Inventory
    from vfioctl.inventory.model.holders import Holder
    from vfioctl.inventory.model.values import PciAddress
    from vfioctl.units import Uuid


def holders(
    devices: InventoryApi, functions: Sequence[Function], mdevs: Sequence[Uuid], inventory: Inventory, *, drivers: bool
) -> tuple[Holder, ...]:
    """Return who has these devices open, so that they cannot be given to others. `drivers`: also who has a function
    that is with its host driver; services that only monitor it do not count."""
    from vfioctl.inventory.model.holders import HolderKind

    functions = [f for f in functions if (not devices.is_free(f.iommu_group) if f.serves_guests else drivers)]
    mdevs = devices.perhaps_open(mdevs) if mdevs else ()
    if not (functions or mdevs):
        return ()
    processes = devices.processes()
    found = devices.holders_of(functions, inventory, processes).holders if functions else ()
    if mdevs:
        found = (*found, *devices.holders_of_mdevs(mdevs, processes).holders)
    kinds = (HolderKind.PROCESS, HolderKind.GUEST, HolderKind.VFIO_GROUP, HolderKind.DISK, HolderKind.NETWORK)
    return tuple(holder for holder in found if holder.kind in kinds and holder.unit not in GPU_SERVICES)


def in_use(
    devices: InventoryApi, functions: Sequence[Function], inventory: Inventory, *, drivers: bool, alone: bool = False
) -> Mapping[PciAddress, str]:
    """Return which functions are in use, each with by whom. `alone`: who has others open that would travel with a
    function does not count."""
    scopes = {
        function.address: (function.address, *(() if alone else (*scope.own, *scope.foreign)))
        for function in functions
        for scope in (scope_of(inventory, (function.address,)),)
    }
    together = dict.fromkeys(address for scope in scopes.values() for address in scope)
    try:
        found = holders(devices, [inventory.by_address[f] for f in together], (), inventory, drivers=drivers)
    except VfioctlError:  # it is raised again when the plan is made for the claim
        return {}
    names = {gpu: [holder.name for holder in found if holder.address in scope] for gpu, scope in scopes.items()}
    return {gpu: f"held by {some_of(dict.fromkeys(who), 2)}" for gpu, who in names.items() if who}
