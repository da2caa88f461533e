"""Drafts taking over what others restore at boot: reads what it needs, and calls the planners. Changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from vfioctl.binding.api import BindingApi
from vfioctl.core.change import Draft
from vfioctl.errors import UnknownDevice
from vfioctl.inventory.api import InventoryApi
from vfioctl.inventory.model.functions import Inventory, is_vfio_driver
from vfioctl.inventory.model.values import PciAddress
from vfioctl.persist.model.intents import ImportIntent
from vfioctl.persist.plan.change import plan_import
from vfioctl.persist.plan.foreign import taken_by
from vfioctl.persist.probe.foreign import driverctl_overrides, given_ids, mdevctl_starts
from vfioctl.session import Session
from vfioctl.units import is_uuid_begun
from vfioctl.vgpu.api import VgpuApi

_NOBODY = "neither driverctl, mdevctl nor ids of vfio-pci"


class Importing:
    """Takes over, on one host, devices that are on VFIO and vGPUs that exist."""

    def __init__(self, session: Session, binding: BindingApi, vgpu: VgpuApi) -> None:
        self._session, self._binding, self._vgpu = session, binding, vgpu
        self._kernel = session.kernel

    def intent(self, words: Sequence[str]) -> ImportIntent:
        """Return the intent for devices and vGPUs; for all that others restore, if there are no words.

        Raises UnknownDevice for a device that nobody binds at boot."""
        mdevs = self._vgpu.whole_names([word for word in words if is_uuid_begun(word)])
        selectors = [word for word in words if not is_uuid_begun(word)]
        known = self._bound_by_others(InventoryApi(self._session).inventory(), driverctl_overrides(self._kernel))
        if not words:
            names = [*map(str, known), *(entry.name for entry in mdevctl_starts(self._kernel, self._restored()))]
            return ImportIntent(names=tuple(names))
        chosen = InventoryApi(self._session).find(selectors) if selectors else ()
        vfs = {vgpu.id for vgpu in self._vgpu.vgpus().instances if ":" in vgpu.id} if set(chosen) - {*known} else set()
        if others := [name for name in chosen if name not in known and name not in vfs]:
            raise UnknownDevice(
                f"{_NOBODY} bind {', '.join(others)} at boot", hint="vfioctl persist list shows what does"
            )
        return ImportIntent(names=tuple(dict.fromkeys((*map(str, chosen), *mdevs))))

    def _restored(self) -> set[str]:
        return set(self._vgpu.definitions()[0])

    def _bound_by_others(self, inventory: Inventory, overrides: Mapping[str, tuple[str, str]]) -> Sequence[PciAddress]:
        """Return the devices of this host that another program binds to VFIO at boot."""
        drivers = {address: driver for address, (_, driver) in overrides.items()}
        found = [f.address for f in inventory.functions if is_vfio_driver(drivers.get(f.address, ""))]
        found += (f.address for _, _, ids in given_ids(self._kernel) for f in taken_by(ids, inventory))
        return tuple(dict.fromkeys(found))

    def _of_ids_left(self, inventory: Inventory, devices: Collection[PciAddress]) -> Iterator[str]:
        for _, file, ids in given_ids(self._kernel):
            if not {*devices}.isdisjoint(f.address for f in taken_by(ids, inventory)):
                yield f"{file} still gives vfio-pci ids={ids[:60]}, so every device with these: remove it there"

    def draft(self, intent: ImportIntent) -> Draft:
        """Return the draft of a plan. Raises HostError for a device that is not on VFIO, UnknownDevice for one that is
        not there, and what `VgpuApi.draft_kept` raises."""
        inventory = InventoryApi(self._session).inventory()
        addresses = [PciAddress(name) for name in intent.names if ":" in name]
        if addresses:
            InventoryApi(self._session).chosen(inventory, addresses)
        overrides = driverctl_overrides(self._kernel)
        known = {*self._bound_by_others(inventory, overrides)}
        devices = [address for address in addresses if address in known]
        bound = plan_import(inventory, intent, devices, self._binding.at_boot.texts(devices), overrides)
        bound = bound.noting(*self._of_ids_left(inventory, devices))
        if not (vgpus := [name for name in intent.names if name not in known]):
            return bound
        kept = self._vgpu.draft_kept(intent, vgpus)
        return Draft(
            intent=intent,
            facts=(*bound.facts, *(fact for fact in kept.facts if fact not in bound.facts)),
            changes=(*bound.changes, *kept.changes),
            checks=kept.checks,
            notes=(*bound.notes, *kept.notes),
        )
