"""The use cases of binding: bind, unbind, reset, rom. Reads the host for `plan`, which decides. May not write to it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from vfioctl.errors import BadSpec, DeviceInUse, KernelRefused
from vfioctl.inventory.api import InventoryApi, Waiting, has_aliases, until_released

if TYPE_CHECKING:
    from vfioctl.binding.model.intents import BindIntent, ResetIntent, RomIntent, UnbindIntent
    from vfioctl.binding.model.rom import Rom
    from vfioctl.binding.probe.at_boot import AtBoot
    from vfioctl.core.change import Change, Draft, Intent, Plan
    from vfioctl.core.events import Cancel, Progress
    from vfioctl.inventory.api import Processes
    from vfioctl.inventory.model.functions import Function, Inventory
    from vfioctl.inventory.model.holders import Holders
    from vfioctl.inventory.model.values import PciAddress
    from vfioctl.session import Session

Asked = TypeVar("Asked", bound="Intent")
_UNIT = re.compile(r"[A-Za-z0-9:_.@\\-]{1,255}", re.ASCII)  # systemd.unit(5)


class BindingApi:
    """Plans binding, unbinding and resetting the functions of one host, and reads their ROMs."""

    def __init__(self, session: Session) -> None:
        self._session, self._kernel = session, session.kernel
        self._devices = InventoryApi(session)

    def plan_bind(  # noqa: PLR0913 - one for each thing that can be asked for
        self,
        devices: Sequence[str],
        *,
        every: bool = False,
        driver: str | None = None,
        with_group: bool = False,
        allow_boot_vga: bool = False,
        persistent: bool = False,
        stop_services: Sequence[str] = (),
        force_holders: bool = False,
        wait: float = 0.0,
        waiting: Waiting | None = None,
    ) -> Plan:
        """Plan binding the devices to VFIO. Devices are named as for `InventoryApi.find`.

        `persistent`: also at each boot, for which the identity of each function is written down once all is verified.
        `stop_services`: units that may be stopped if they hold a device (`units_to_stop`). `wait`: timeout in seconds
        for holders to release the devices; `waiting` is called meanwhile.

        Raises NoIommu, GroupNotViable, DeviceInUse, DeviceDead, BadSpec, and what `find` raises."""

        def intent(chosen: tuple[PciAddress, ...]) -> BindIntent:
            from vfioctl.binding.model.intents import BindIntent

            return BindIntent(
                devices=chosen,
                driver=driver,
                with_group=with_group,
                allow_boot_vga=allow_boot_vga,
                persistent=persistent,
                stop_services=tuple(stop_services),
                force_holders=force_holders,
            )

        plan = partial(self._planned, devices, intent, self._bind, every=every, whole=persistent)
        return until_released(plan, wait=wait, waiting=waiting)

    def plan_unbind(  # noqa: PLR0913 - one for each thing that can be asked for
        self,
        devices: Sequence[str],
        *,
        every: bool = False,
        to: str | None = None,
        with_group: bool = False,
        persistent: bool = False,
        force_holders: bool = False,
        wait: float = 0.0,
        waiting: Waiting | None = None,
    ) -> Plan:
        """Plan returning the devices to their drivers; see `plan_bind`. Raises DeviceInUse, BadSpec.

        `persistent`: they are not bound at the next boot either."""

        def intent(chosen: tuple[PciAddress, ...]) -> UnbindIntent:
            from vfioctl.binding.model.intents import UnbindIntent

            return UnbindIntent(
                devices=chosen, driver=to, with_group=with_group, persistent=persistent, force_holders=force_holders
            )

        plan = partial(self._planned, devices, intent, self._unbind, every=every)
        return until_released(plan, wait=wait, waiting=waiting)

    def plan_reset(
        self,
        device: str,
        *,
        method: str | None = None,
        force_holders: bool = False,
        wait: float = 0.0,
        waiting: Waiting | None = None,
    ) -> Plan:
        """Plan resetting one device. Raises BadSpec, DeviceInUse, DeviceDead, HostError."""

        def intent(chosen: tuple[PciAddress, ...]) -> ResetIntent:
            from vfioctl.binding.model.intents import ResetIntent

            return ResetIntent(devices=chosen, method=method, force_holders=force_holders)

        return until_released(partial(self._planned, [device], intent, self._reset), wait=wait, waiting=waiting)

    def replan(self, intent: Intent) -> Plan:
        """Plan an intent on the host as it is now. Raises UnknownDevice, and what planning raises."""
        from vfioctl.binding.model.intents import BindIntent, ResetIntent, UnbindIntent

        makers: Mapping[type[Intent], Callable[[Inventory, Any, Processes], Draft]] = {
            BindIntent: self._bind,
            UnbindIntent: self._unbind,
            ResetIntent: self._reset,
        }
        if type(intent) not in makers:
            raise BadSpec(f"{intent.title()}: this plan cannot be saved and applied later")
        devices = getattr(intent, "devices", ())
        whole = getattr(intent, "persistent", False)
        return self._planned(devices, lambda _: intent, makers[type(intent)], every=True, whole=whole)

    def _planned(
        self,
        devices: Sequence[str],
        intent: Callable[[tuple[PciAddress, ...]], Asked],
        make: Callable[[Inventory, Asked, Processes], Draft],
        *,
        every: bool | None = None,
        whole: bool = False,
    ) -> Plan:
        """`whole`: read all devices, not only those near: what a device's identity is, depends on the others."""
        processes = self._devices.processes()  # its workers scan while the inventory is read
        inventory = self._devices.inventory(near=None if whole else devices)
        chosen = self._devices.chosen(inventory, devices, every=every)
        try:
            draft = make(inventory, intent(chosen), processes)
        except DeviceInUse:
            self._session.refuse_parts(chosen)
            raise
        return self._session.plan(self.noted(draft))

    def _bind(self, inventory: Inventory, intent: BindIntent, processes: Processes) -> Draft:
        from vfioctl.binding.model.conditions import Circumstances
        from vfioctl.binding.plan.bind import plan_bind
        from vfioctl.binding.probe.settings import idle_devices_sleep, read_settings
        from vfioctl.inventory.model.values import PciAddress

        concerned, holders = self._affected(inventory, intent.devices, processes)
        may_stop = set(intent.stop_services)
        refusing = ((h.unit, h.address) for h in holders.refusing if isinstance(h.address, PciAddress))
        units = [(unit, address) for unit, address in refusing if unit is not None and unit in may_stop]
        readings, idle = read_settings(self._kernel, concerned, units), idle_devices_sleep(self._kernel)
        circumstances = Circumstances(holders=holders, readings=readings, idle_devices_sleep=idle)
        if intent.persistent:
            at_boot = self.at_boot.texts([f.address for f in concerned])
            moved = self.at_boot.moved(inventory, concerned)
            circumstances = replace(circumstances, at_boot=at_boot, moved=moved)
        return plan_bind(inventory, intent, circumstances)

    def _unbind(self, inventory: Inventory, intent: UnbindIntent, processes: Processes) -> Draft:
        from vfioctl.binding.model.binding import same_driver
        from vfioctl.binding.model.conditions import Circumstances
        from vfioctl.binding.plan.bind import plan_unbind
        from vfioctl.binding.records import recorded_bindings, recorded_settings

        concerned, holders = self._affected(inventory, intent.devices, processes)
        identities = {function.address: function.identity for function in inventory.functions}
        selective = any(same_driver(n, intent.driver) and has_aliases(self._kernel, n) for n in inventory.drivers)
        at_boot, store = self.at_boot.texts([f.address for f in concerned]), self._session.store
        circumstances = Circumstances(holders=holders, selective=selective, at_boot=at_boot)
        if not self._session.has_ledger:  # no boot id is needed then
            return plan_unbind(inventory, intent, {}, circumstances)
        boot_id = self._session.boot_id
        records = recorded_bindings(store, identities, boot_id=boot_id)
        recorded = recorded_settings(store, self._session.registry, boot_id=boot_id)
        return plan_unbind(inventory, intent, records, circumstances, self._restoring(recorded))

    def noted(self, draft: Draft) -> Draft:
        """Return a draft with a note if it changes a definition that the initramfs may have."""
        from vfioctl.binding.model.definition import DEFINITION
        from vfioctl.kernel.initramfs import renewal_notes

        return draft.noting(*renewal_notes(self._kernel)) if DEFINITION in {c.kind for c in draft.changes} else draft

    @property
    def at_boot(self) -> AtBoot:
        """What a boot binds to VFIO."""
        from vfioctl.binding.probe.at_boot import AtBoot

        return AtBoot(self._kernel)

    def _restoring(self, recorded: Sequence[Change]) -> tuple[Change, ...]:
        """Return the changes that restore recorded settings; a value that someone else has set since is left alone."""
        from vfioctl.core.reading import read_changes
        from vfioctl.core.resource import Found

        registry = self._session.registry
        current = Found(read_changes(self._kernel, registry, recorded))
        restored = (registry.resource(change).restore(change, current) for change in recorded)
        return tuple(change for change in restored if change is not None)

    def _reset(self, inventory: Inventory, intent: ResetIntent, processes: Processes) -> Draft:
        from vfioctl.binding.model.conditions import Circumstances
        from vfioctl.binding.plan.reset import plan_reset, reset_with
        from vfioctl.inventory.model.preconditions import refuse_marked
        from vfioctl.kernel.protocol import PCI_DEVICES

        refuse_marked(inventory.by_address[intent.devices[0]])  # before any read that may block too
        concerned = [inventory.by_address[address] for address in reset_with(inventory, intent.devices[0])]
        holders = self._devices.holders_of(concerned, inventory, processes)
        places = {function.address for function in concerned} | {f.upstream for f in concerned if f.upstream}
        files = {f"{PCI_DEVICES}/{place}/{name}" for place in places for name in ("reset", "reset_subordinate")}
        existing = frozenset(filter(self._kernel.has, files))
        return plan_reset(inventory, intent, Circumstances(holders=holders), existing)

    def _affected(
        self, inventory: Inventory, devices: Sequence[PciAddress], processes: Processes
    ) -> tuple[list[Function], Holders]:
        """Return the functions of the cards and groups, without bridges, and who holds those with a driver."""
        from vfioctl.inventory.model.preconditions import refuse_marked
        from vfioctl.inventory.model.scope import scope_of

        scope = scope_of(inventory, devices)
        for address in scope.own:
            refuse_marked(inventory.by_address[address])  # before any read that may block too
        functions = [inventory.by_address[address] for address in (*scope.own, *scope.foreign)]
        return functions, self._devices.holders_of([f for f in functions if f.driver], inventory, processes)

    def rom(self, device: str, *, progress: Progress | None = None, cancel: Cancel | None = None) -> tuple[bytes, Rom]:
        """Read one function's expansion ROM; return its bytes and contents. Journaled, because it enables the ROM.

        On a read-only host the ROM's bytes must be recorded. Raises DeviceInUse, DeviceDead, KernelRefused,
        VerifyError."""
        from vfioctl.binding.model.intents import RomIntent
        from vfioctl.binding.probe.rom import explain_refusal, understood
        from vfioctl.inventory.model.preconditions import refuse_marked

        inventory = self._devices.inventory(near=[device])
        (address,) = self._devices.chosen(inventory, [device])
        function = inventory.by_address[address]
        refuse_marked(function)
        try:
            if self._kernel.read_only:
                data = self._kernel.rom(address)
            else:
                plan = self._session.plan(self._rom(inventory, RomIntent(devices=(address,))))
                (data,) = self._session.apply(plan, progress=progress, cancel=cancel).data.values()
        except KernelRefused as error:
            explain_refusal(self._kernel, function, error)
            raise
        return data, understood(self._kernel, function, data)

    def _rom(self, inventory: Inventory, intent: RomIntent) -> Draft:
        from vfioctl.binding.resources.rom import OFF, ON, ROM
        from vfioctl.core.change import Change, Draft
        from vfioctl.inventory.model.scope import function_fact
        from vfioctl.kernel.protocol import PCI_DEVICES

        (address,) = intent.devices
        name = f"{PCI_DEVICES}/{address}/rom"
        switched = Change(kind=ROM, name=name, subject=address, before=OFF, after=OFF, during=ON)
        return Draft(intent=intent, facts=(function_fact(inventory.by_address[address]),), changes=(switched,))


def units_to_stop(named: Sequence[str], *, known: bool) -> tuple[str, ...]:
    """Return the units that may be stopped; with `known` also those that only monitor GPUs. Raises BadSpec."""
    from vfioctl.binding.model.conditions import GPU_SERVICES

    for name in named:
        if not _UNIT.fullmatch(name):
            raise BadSpec(f"not a unit's name: {name[:40]!r}", hint="systemctl list-units --type=service lists them")
    if not named and not known:
        return ()
    units = (name if name.endswith(".service") else f"{name}.service" for name in named)
    return tuple(dict.fromkeys([*units, *(GPU_SERVICES if known else ())]))
