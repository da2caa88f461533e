"""Turns an intent into the draft of a plan: reads the facts that it needs, and calls the planner. Changes nothing.
Reads only the vGPUs and functions that the intent names: creating a vGPU takes less time than reading a whole host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from vfioctl.core.change import Draft, Fact, Intent
from vfioctl.errors import BadDocument, DeviceInUse, UnknownDevice
from vfioctl.inventory.api import InventoryApi
from vfioctl.inventory.model.functions import Inventory
from vfioctl.inventory.model.holders import Holders
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.protocol import PCI_ADDRESS, FileReader
from vfioctl.session import Session
from vfioctl.units import Uuid
from vfioctl.vgpu.ledger.journaled import claimed_and_lost
from vfioctl.vgpu.ledger.reading import Recorded, recorded
from vfioctl.vgpu.model.intents import CreateVgpuIntent, ProfileIntent, RemoveVgpuIntent, SetVfsIntent
from vfioctl.vgpu.model.kinds import VF_COUNTS
from vfioctl.vgpu.model.lookup import cards_called
from vfioctl.vgpu.model.persistent import definition_file, own_definition_file, refuse_another
from vfioctl.vgpu.model.vgpu import Vgpus, VgpuState
from vfioctl.vgpu.placement.reserved import Reserved, reserved_mdevs
from vfioctl.vgpu.plan.create import choose, plan_create
from vfioctl.vgpu.plan.keep import plan_keep
from vfioctl.vgpu.plan.remove import plan_remove
from vfioctl.vgpu.plan.sriov import plan_profile, plan_vfs
from vfioctl.vgpu.probe.persistent import read_own_definitions
from vfioctl.vgpu.probe.plan_facts import cards_of, physical_function, read_affected, texts_of


class Planning:
    """Drafts one plan on one host. `inventory`: of the whole host, if it has just been read."""

    def __init__(self, session: Session, devices: InventoryApi, inventory: Inventory | None) -> None:
        self._session, self._kernel, self._devices, self._inventory = session, session.kernel, devices, inventory

    @cached_property
    def _recorded(self) -> Recorded:
        return recorded(self._session)

    def draft(self, intent: Intent) -> Draft:
        """The draft for an intent. Raises what the planners in `plan` raise."""
        return _PLANNERS[type(intent)](self, intent)

    def create(self, intent: CreateVgpuIntent) -> Draft:
        vgpus = read_affected(self._kernel, self._recorded, None, None)
        reserved = (*reserved_mdevs(vgpus), *self._reserved_vfs(vgpus))
        chosen, names = choose(vgpus, intent, reserved, claimed_and_lost(self._session, vgpus))
        used = tuple(name for name in names if isinstance(name, Uuid))  # VFs have none
        intent = intent.model_copy(update={"uuids": used})
        facts = self._facts(name for place in chosen.places for name in (place.card, place.parent))
        files = [definition_file(name, place.parent) for place, name in zip(chosen.places, names, strict=True)]
        texts = texts_of(self._kernel, files if intent.persistent else ())
        return plan_create(vgpus, intent, chosen, names, facts, texts)

    def keep(self, intent: Intent, names: Sequence[str]) -> Draft:
        """The draft that makes vGPUs persistent that exist. Raises what `plan_keep` raises."""
        vgpus = read_affected(self._kernel, self._recorded, cards_of(self._kernel, names), names)
        kept = [vgpu for vgpu in vgpus.instances if vgpu.id in names]
        files = [v.definition.path if v.definition else definition_file(v.id, v.parent) for v in kept]
        facts = self._facts(name for vgpu in kept for name in (vgpu.card, vgpu.parent))
        return plan_keep(intent, names, vgpus, facts, texts_of(self._kernel, files), self._recorded.created)

    def _reserved_vfs(self, vgpus: Vgpus) -> Iterator[Reserved]:
        """The VFs that a definition gives a vGPU type at boot, and that have none now."""
        existing = {vgpu.id for vgpu in vgpus.instances}
        definitions, _ = read_own_definitions(self._kernel)
        for definition in definitions:
            if definition.vfs is None and definition.device not in existing:
                yield Reserved(definition.device, definition.device, definition.name or definition.type or "")

    def remove(self, intent: RemoveVgpuIntent) -> Draft:
        wanted = intent.vgpus
        vgpus = read_affected(self._kernel, self._recorded, cards_of(self._kernel, wanted), wanted)
        # a wedged device would block, and is refused anyway
        unanswering = (VgpuState.ZOMBIE, VgpuState.WEDGED)
        going = [v for v in vgpus.instances if v.id in wanted and v.state not in unanswering]
        facts = self._facts(name for vgpu in going for name in (vgpu.card, vgpu.parent))
        addresses = [address for address in wanted if isinstance(address, PciAddress)]
        files = [definition_file(vgpu.id, vgpu.parent) for vgpu in going]
        files += [vgpu.definition.path for vgpu in going if vgpu.definition]
        files += [own_definition_file(address) for address in addresses]
        texts = texts_of(self._kernel, files)
        existing = {vgpu.id for vgpu in going}
        uuids = [uuid for uuid in wanted if isinstance(uuid, Uuid)]
        held = self._holders(uuids, [address for address in addresses if address in existing])
        return plan_remove(vgpus, intent, facts, texts, self._recorded.created, held)

    def set_vfs(self, intent: SetVfsIntent) -> Draft:
        processes = self._devices.processes()  # its workers run while the inventory is read
        vgpus = read_affected(self._kernel, self._recorded, {*intent.devices}, types=False)
        inventory = self._whole_host()
        (address,) = intent.devices
        if address not in inventory.by_address:
            raise UnknownDevice(f"there is no device {address} here", hint="vfioctl vgpu types lists cards")
        function = inventory.by_address[address]
        known = physical_function(self._kernel, function)
        vfs = [inventory.by_address[vf] for vf in function.virtfns if vf in inventory.by_address]
        # sriov-manage unbinds the GPU for a moment
        managed = [function] if function.driver == "nvidia" else []
        holders = self._devices.holders_of([*managed, *vfs], inventory, processes)
        return plan_vfs(inventory, vgpus, intent, known, self._recorded.created, holders)

    def profile(self, intent: ProfileIntent) -> Draft:
        vgpus = read_affected(self._kernel, self._recorded, {*intent.devices}, types=False)
        (card,) = cards_called(vgpus, intent.devices[0])
        return plan_profile(self._whole_host(), card, intent)

    def _whole_host(self) -> Inventory:
        return self._inventory or self._devices.inventory()

    def _facts(self, names: Iterable[str]) -> Mapping[str, Fact]:
        addresses = [name for name in dict.fromkeys(names) if PCI_ADDRESS.fullmatch(name)]
        return self._devices.facts(addresses) if addresses else {}

    def _holders(self, mdevs: Sequence[Uuid], functions: Sequence[PciAddress]) -> Holders:
        suspects = self._devices.perhaps_open(mdevs)
        if not (suspects or functions):
            return Holders(devices=())
        processes = self._devices.processes()
        held = self._devices.holders_of_mdevs(suspects, processes)
        if not functions:
            return held
        inventory = self._devices.some(functions)
        known = [inventory.by_address[function] for function in functions if function in inventory.by_address]
        of_vfs = self._devices.holders_of(known, inventory, processes)
        return replace(of_vfs, holders=(*held.holders, *of_vfs.holders))


_PLANNERS: Mapping[type[Intent], Callable[[Planning, Any], Draft]] = {
    CreateVgpuIntent: Planning.create,
    RemoveVgpuIntent: Planning.remove,
    SetVfsIntent: Planning.set_vfs,
    ProfileIntent: Planning.profile,
}


def draft_persistent(
    kernel: FileReader,
    file: str,
    found: Mapping[str, Intent],
    damaged: Mapping[str, str],
    vgpus: Callable[[], Vgpus],
    draft: Callable[[Intent], Draft],
) -> Draft | None:
    """The draft that creates what a definition defines; None when it exists already, or there is no such file. Raises
    BadDocument for a damaged file, DeviceInUse when the PF has another number of VFs, DeviceMissing for another PF."""
    if file in damaged:
        raise BadDocument(f"{file}: {damaged[file]}", hint="repair the file, or remove it")
    if file not in found or _exists(vgpus, found[file]):
        return None
    drafted = draft(found[file])
    for change in drafted.changes:
        if change.kind in VF_COUNTS and change.before not in ("0", change.after):
            raise DeviceInUse(
                f"{change.subject} has {change.before} VFs already, but {change.after} are persistent",
                hint="keep them, or change the number",
                next_command=f"vfioctl sriov set {change.subject} {change.after}",
            )
    own = {own_definition_file(definition.device): definition for definition in read_own_definitions(kernel)[0]}
    identities = {fact.subject: known for fact in drafted.facts if (known := fact.values.get("identity"))}
    refuse_another(file, own.get(file), identities)
    return drafted


def _exists(vgpus: Callable[[], Vgpus], intent: Intent) -> bool:
    if not isinstance(intent, CreateVgpuIntent):
        return False
    names = {str(uuid) for uuid in intent.uuids} or {intent.parent or ""}
    return any(
        vgpu.id in names and vgpu.state is VgpuState.LIVE and intent.type in (vgpu.type, vgpu.type_name)
        for vgpu in vgpus().instances
    )
