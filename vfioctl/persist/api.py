"""The use cases of persistence: list, restore, remove, import. May not write to the host but through plans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

from vfioctl.binding.api import BindingApi
from vfioctl.errors import BadDocument, BadSpec, DeviceMissing, HostError, UnknownDevice, VfioctlError
from vfioctl.inventory.api import InventoryApi
from vfioctl.inventory.model.values import PciAddress
from vfioctl.persist.model.persistent import Owner, Persistent, State
from vfioctl.units import is_uuid_begun
from vfioctl.vgpu.api import VgpuApi

if TYPE_CHECKING:
    from vfioctl.core.change import Change, Draft, Intent, Plan
    from vfioctl.core.events import Cancel, Progress
    from vfioctl.core.restoring import Restored
    from vfioctl.inventory.model.functions import Inventory
    from vfioctl.persist.lifecycle.importing import Importing
    from vfioctl.persist.model.installed import InstallIntent, UninstallIntent
    from vfioctl.session import Session


class PersistApi:
    """What a boot of one host restores."""

    def __init__(self, session: Session) -> None:
        self._session, self._kernel = session, session.kernel

    @cached_property
    def _binding(self) -> BindingApi:
        return BindingApi(self._session)

    @cached_property
    def _vgpu(self) -> VgpuApi:
        return VgpuApi(self._session)

    def switched_off(self) -> str:
        """Return the file or kernel argument that keeps vfioctl from restoring anything; empty if there is none."""
        from vfioctl.persist.probe.foreign import switched_off

        return switched_off(self._kernel)

    def persistent(self, inventory: Inventory | None = None) -> tuple[Persistent, ...]:
        """Return what a boot restores, and whether it is there now: first what vfioctl restores. `inventory`: of the
        whole host, if it has just been read."""
        from vfioctl.persist.plan.foreign import by_ids, overridden
        from vfioctl.persist.probe import foreign

        inventory = inventory or InventoryApi(self._session).inventory()
        vgpus = self._of_vgpus()
        return (
            *self._of_devices(inventory),
            *vgpus,
            *overridden(foreign.driverctl_overrides(self._kernel), inventory),
            *foreign.mdevctl_starts(self._kernel, {entry.file for entry in vgpus}),
            *(by_ids(*given, inventory) for given in foreign.given_ids(self._kernel)),
        )

    def _of_devices(self, inventory: Inventory) -> Iterator[Persistent]:
        at_boot = self._binding.at_boot
        (definitions, damaged), rules = at_boot.definitions(), at_boot.rules()
        if definitions or damaged or rules:
            from vfioctl.persist.plan.listing import devices

            yield from devices(definitions, damaged, rules, inventory)

    def _of_vgpus(self) -> list[Persistent]:
        wanted, damaged = self._vgpu.definitions()
        entries = []
        for file, intent in wanted.items():
            name = file.rpartition("/")[2].removesuffix(".json")
            state, why = State.READY, ""
            try:
                plan = self._vgpu.plan_persistent(file)
                if plan is not None and not plan.nothing_to_do:
                    state = State.ABSENT
            except VfioctlError as error:
                state, why = State.FAILED, error.message
            goal = intent.title().removeprefix(f"{intent.verb} ").replace(" --persistent", "")
            entries.append(Persistent(name=name, goal=goal, owner=Owner.VFIOCTL, state=state, file=file, why=why))
        for file, why in damaged.items():
            name = file.rpartition("/")[2].removesuffix(".json")
            entries.append(
                Persistent(name=name, goal="unknown", owner=Owner.VFIOCTL, state=State.FAILED, file=file, why=why)
            )
        return entries

    def plan_remove(self, names: Sequence[str]) -> Plan:
        """Plan removing the definitions of devices, PFs or vGPUs, so that the next boot does not restore them.

        Raises UnknownDevice for a name that vfioctl restores nothing for."""
        from vfioctl.persist.model.intents import ForgetIntent

        return self.replan(ForgetIntent(names=tuple(dict.fromkeys(map(self._whole_name, names)))))

    def _whole_name(self, word: str) -> str:
        """Return the address or UUID that a definition has in its name. A device that is gone may have one, too."""
        if ":" in word:
            return PciAddress(word)
        if is_uuid_begun(word):
            begun = [name for name in self._files_of_vgpus() if ":" not in name and name.startswith(word.lower())]
            return begun[0] if len(begun) == 1 else word.lower()
        (address,) = InventoryApi(self._session).find([word])
        return address

    def _files_of_vgpus(self) -> Mapping[str, str]:
        """Return the definitions of vGPUs and of VFs, by UUID or address."""
        files = (file for found in self._vgpu.definitions() for file in found)
        return {file.rpartition("/")[2].removesuffix(".json"): file for file in files}

    def plan_import(self, names: Sequence[str] = ()) -> Plan:
        """Plan taking over devices that driverctl, or ids of vfio-pci, bind to VFIO at boot, and vGPUs that exist,
        whoever created them. Without names: all of these devices, and all vGPUs that mdevctl creates at boot.

        Raises HostError for a device that is not on VFIO and a vGPU that does not exist now, UnknownDevice for one that
        nobody restores, and what `VgpuApi.draft_kept` raises."""
        return self.replan(self._importing.intent(names))

    @cached_property
    def _importing(self) -> Importing:
        from vfioctl.persist.lifecycle.importing import Importing

        return Importing(self._session, self._binding, self._vgpu)

    def replan(self, intent: Intent) -> Plan:
        """Plan an intent on the host as it is now. Raises what `plan_remove` and `plan_import` raise."""
        from vfioctl.persist.model.installed import InstallIntent, UninstallIntent
        from vfioctl.persist.model.intents import ForgetIntent, ImportIntent

        if isinstance(intent, ForgetIntent):
            from vfioctl.persist.plan.change import plan_forget

            return self._session.plan(self._binding.noted(plan_forget(intent, self._forgotten(intent.names))))
        if isinstance(intent, ImportIntent):
            return self._session.plan(self._binding.noted(self._importing.draft(intent)))
        if isinstance(intent, InstallIntent | UninstallIntent):
            return self._session.plan(self._installed(intent))
        raise BadSpec(f"{intent.title()}: this plan cannot be saved and applied later")

    def _forgotten(self, names: Sequence[str]) -> list[Change]:
        from vfioctl.binding.model.definition import persistent_changes
        from vfioctl.core.change import Change
        from vfioctl.kernel.protocol import PCI_ADDRESS
        from vfioctl.vgpu.model.kinds import DEFINITION

        files = self._files_of_vgpus()
        changes: list[Change] = []
        for name in names:
            before = len(changes)
            if PCI_ADDRESS.fullmatch(name):
                address = PciAddress(name)
                changes += persistent_changes(address, self._binding.at_boot.texts([address])[address], None)
            if file := files.get(name):
                text = self._kernel.read(file)
                changes.append(Change(kind=DEFINITION, name=file, subject=name, before=text, after=""))
            if len(changes) == before:
                raise UnknownDevice(
                    f"vfioctl restores nothing for {name[:60]} at boot",
                    hint="vfioctl persist list shows what it restores",
                )
        return changes

    def plan_install(self) -> Plan:
        """Plan installing what restores devices at boot (a rule, units, a script), completions, and manual pages. Where
        a package of the system has installed them: plan removing copies that take precedence. Raises MissingLibrary."""
        from vfioctl.persist.model.installed import InstallIntent

        return self.replan(InstallIntent())

    def plan_uninstall(self) -> Plan:
        """Plan removing what `plan_install` installs."""
        from vfioctl.persist.model.installed import UninstallIntent

        return self.replan(UninstallIntent())

    def has_package(self) -> bool:
        """Return whether a package of the system has installed vfioctl."""
        from vfioctl.persist.model.installed import MARK

        return self._kernel.has(MARK)

    def not_installed(self) -> tuple[str, ...]:
        """Return the paths of what a boot needs and `plan_install` would change, and of a package's files of another
        release. Raises KernelRefused, MissingLibrary."""
        from vfioctl.persist.packaged import of_boot
        from vfioctl.persist.probe.installed import differing

        return differing(self._kernel, of_boot())

    def outdated_initramfs(self) -> str:
        """Return why the initramfs is outdated, and the command that renews it; empty if it is not, or not known."""
        from vfioctl.kernel.initramfs import outdated

        return outdated(self._kernel)

    def _installed(self, intent: InstallIntent | UninstallIntent) -> Draft:
        from vfioctl.kernel.initramfs import command
        from vfioctl.persist.packaged import of_documents, packaged, pages_are_in_place
        from vfioctl.persist.plan.installing import plan_installed
        from vfioctl.persist.probe.installed import documents, for_boot, optional_links, useful

        now = {**for_boot(self._kernel), **documents(self._kernel, of_documents(), pages=not pages_are_in_place())}
        if intent.verb == "uninstall":
            now.update(optional_links(self._kernel))
        texts, renewal = useful(self._kernel, packaged()), command(self._kernel)
        return plan_installed(intent, now, texts, renewal=renewal, has_package=self.has_package())

    def plan_restore(self, file: str) -> Plan | None:
        """Plan what one definition defines; None if it is there already.

        Raises BadDocument for a damaged file, DeviceMissing for a device that is not there or ambiguous, and what
        `BindingApi.plan_bind` and `VgpuApi.plan_persistent` raise."""
        from vfioctl.binding.model.definition import locate_all
        from vfioctl.kernel.host_paths import DEVICES
        from vfioctl.persist.plan.listing import beside

        if not file.startswith(f"{DEVICES}/"):
            return self._vgpu.plan_persistent(file)
        definitions, damaged = self._binding.at_boot.definitions()
        if file in damaged:
            raise BadDocument(f"it cannot be used: {damaged[file]}", hint="repair it, or remove it")
        if file not in definitions:  # removed meanwhile
            return None
        inventory = InventoryApi(self._session).inventory()
        places = locate_all(definitions, inventory)
        if places[file].address is None:
            raise DeviceMissing(
                f"{definitions[file].address}: {places[file].why}",
                hint="nothing is bound in its place. vfioctl persist remove, if it is gone for good",
            )
        together = beside(file, places, inventory)
        drivers = {definitions[other].driver for other in together}
        plan = self._binding.plan_bind(
            [address for other in together if (address := places[other].address)],
            driver=drivers.pop() if len(drivers) == 1 else None,
            allow_boot_vga=any(definitions[other].boot_display for other in together),
        )
        return None if plan.nothing_to_do else plan

    def restore(
        self,
        *,
        wait: float = 0.0,
        progress: Progress | None = None,
        cancel: Cancel | None = None,
        dry_run: bool = False,
    ) -> Restored:
        """First recovers a change that a reboot interrupted; then restores VFs, devices and vGPUs, each even if others
        fail, and the claims that a reboot ended. `wait`: seconds to retry failures: a driver may not be loaded yet.

        Raises HostError if restoring is switched off."""
        from vfioctl.core.restoring import recover_interrupted, restore
        from vfioctl.vgpu.model.intents import SetVfsIntent

        if why := self.switched_off():
            raise HostError(f"restoring is switched off: {why}", hint="remove that, and run it again")
        devices, damaged = self._binding.at_boot.definitions()
        vgpus, damaged_vgpus = self._vgpu.definitions()
        vfs = [file for file, intent in vgpus.items() if isinstance(intent, SetVfsIntent)]
        files = tuple(dict.fromkeys((*vfs, *devices, *damaged, *vgpus, *damaged_vgpus)))
        if dry_run:
            return restore(files, self.plan_restore, None, {}, wait=wait)
        interrupted = recover_interrupted(self._session.engine)
        apply = partial(self._session.apply, progress=progress, cancel=cancel)
        restored = restore(files, self.plan_restore, apply, interrupted, wait=wait, cancel=cancel)
        return replace(restored, failures={**restored.failures, **self._restore_claims(progress, cancel)})

    def _restore_claims(self, progress: Progress | None, cancel: Cancel | None) -> Mapping[str, VfioctlError]:
        """Bind again what claims had bound before a reboot, and create their vGPUs; return what failed, by claim."""
        from vfioctl.claims.api import ClaimsApi
        from vfioctl.claims.model.difference import DifferenceKind, Fix

        if not self._session.has_ledger:
            return {}
        reconciling = ClaimsApi(self._session).reconciling
        wanted = (DifferenceKind.REBOOTED, Fix.RESTORE)
        ended = [d for d in reconciling.compare().differences if (d.kind, d.fix) == wanted]
        fixed = reconciling.fix(ended, progress=progress, cancel=cancel)
        return {f"claim {repair.difference.claim}": repair.error for repair in fixed if repair.error}
