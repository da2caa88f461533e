"""The library's front door: one object per host, whatever stands behind it.

    >>> from vfioctl.host import Host
    >>> host = Host.recorded("workstation")
    >>> plan = host.plan_bind(["gpu1"])
    >>> [step.target for step in plan.steps][0]
    'vfio-pci'

Every method may raise any class of the error tree in `vfioctl.errors`; a method names those of its own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from vfioctl.errors import BadDocument, StoreDamaged
from vfioctl.kernel.recorded.bundled import beside, file_of, simulated_file
from vfioctl.vgpu.api import HostVgpus

if TYPE_CHECKING:  # a listing needs neither the store nor the engine, and starts without them
    from vfioctl.binding.model.rom import Rom
    from vfioctl.core.change import JournalEntry, Outcome, Plan
    from vfioctl.core.engine import Engine
    from vfioctl.core.executor import Progress
    from vfioctl.core.journal import Journal
    from vfioctl.inventory.model.functions import Inventory, Mark
    from vfioctl.inventory.model.holders import Holders
    from vfioctl.inventory.model.values import PciAddress, Subject
    from vfioctl.inventory.probe.scan import Catalogue
    from vfioctl.kernel.protocol import Kernel
    from vfioctl.kernel.simulated.faults import Fault

LEDGER = Path("/var/lib/vfioctl/ledger.db")
_DASHES = 4  # of a UUID


def gpu_services() -> tuple[str, ...]:
    """Services that hold GPUs only to look after them, which may be stopped for a change."""
    from vfioctl.binding.plan.release import GPU_SERVICES

    return GPU_SERVICES


class Host(HostVgpus):
    """A host: this machine, a captured directory, a recorded file, or a simulation."""

    def __init__(self, kernel: Kernel, ledger: Path, *, settle: float = 10.0, lock_wait: float = 10.0) -> None:
        self.kernel, self.ledger = kernel, ledger
        self._settle, self._lock_wait = settle, lock_wait
        self._seen: Inventory | None = None

    @cached_property
    def _catalogue(self) -> Catalogue:
        from vfioctl.inventory.probe.scan import Catalogue

        return Catalogue(self.kernel)

    @cached_property
    def _journal(self) -> Journal:
        from vfioctl.core.journal import Journal
        from vfioctl.core.store import Store

        return Journal(Store(self.ledger))

    @cached_property
    def _engine(self) -> Engine:
        from vfioctl.core.engine import Engine

        return Engine(self.kernel, self._journal, settle=self._settle, lock_wait=self._lock_wait)

    # -- which host --------------------------------------------------------------------------------

    @classmethod
    def live(cls, ledger: Path | None = None) -> Host:
        """This machine."""
        from vfioctl.config import read_timeouts
        from vfioctl.kernel.live.host import Live

        return cls(Live(timeouts=read_timeouts()), ledger or LEDGER)

    @classmethod
    def at(cls, root: Path, ledger: Path | None = None) -> Host:
        """A captured `sys/ proc/ dev/` tree, read-only. Raises BadDocument."""
        from vfioctl.kernel.live.host import Live

        try:
            place = root.resolve(strict=True)
            captured = (place / "sys").is_dir()
        except (OSError, RuntimeError, ValueError) as error:  # a loop of links, and what no path can hold
            raise BadDocument(f"{str(root)[:200]} cannot be read: {error}"[:400]) from None
        if not captured:
            raise BadDocument(f"{root} holds no captured host", hint="it should hold sys/, proc/ and dev/")
        return cls(Live(str(place), read_only=True), ledger or (beside(place) if place.name else LEDGER))

    @classmethod
    def recorded(cls, name: str, ledger: Path | None = None) -> Host:
        """A host file, or a bundled host by its name, read-only. Raises BadDocument."""
        from vfioctl.kernel.recorded.host import Recorded, read_tree

        file = file_of(name)
        return cls(Recorded(read_tree(file), f"recorded host {file.name}"), ledger or beside(file))

    @classmethod
    def simulated(cls, name: str, ledger: Path | None = None, *, faults: Sequence[Fault] = ()) -> Host:
        """A host file, or a bundled host by its name, that answers writes; it is kept in its file.

        A bundled host is copied to the user's state directory first (`simulated_file`). Raises BadDocument.
        """
        from vfioctl.kernel.simulated.faults import parse_fault
        from vfioctl.kernel.simulated.host import Simulated

        file = simulated_file(name)
        told = os.environ.get("VFIOCTL_FAULTS", "")
        faults = (*faults, *(parse_fault(text) for text in told.split(",") if text))
        return cls(Simulated.at(file, faults=faults), ledger or beside(file), settle=0.0)

    # -- looking -----------------------------------------------------------------------------------

    def inventory(self) -> Inventory:
        """The host as it is now, with what the ledger says against its devices."""
        from vfioctl.inventory.probe.scan import Scan

        # asked first where there is a ledger: a wedged device is not to be read like the others
        marks = self._marks()
        wedged = [address for address, mark in marks.items() if mark.kind == "wedged"]
        scan = Scan(self.kernel, self._catalogue, suspects=wedged)  # its children read while the models are imported
        from vfioctl.inventory.probe.inventory import assemble

        self._seen = assemble(self.kernel, scan, marks)
        return self._seen

    def _marks(self) -> Mapping[Subject, Mark]:
        """None where the ledger cannot be used: a listing is wanted then more than ever."""
        if not self.ledger.exists():
            return {}
        with suppress(StoreDamaged):
            return self._engine.marks()
        return {}

    def find(self, selectors: Sequence[str], *, every: bool = False) -> tuple[PciAddress, ...]:
        """The functions that `0000:41:00.0`, `41:00.0`, `gpu0` or `10de:2330` mean.

        Raises BadAddress, UnknownDevice, and BadSpec for ids that mean several without `every`.
        """
        from vfioctl.inventory.selector import select

        return select(self.inventory(), selectors, every=every)

    def holders(self, selectors: Sequence[str], *, every: bool = False) -> Holders:
        """Who uses the functions, the rest of their cards and what shares their groups; named as for `find`.

        A mediated device is named by its UUID. Raises UnknownDevice.
        """
        from vfioctl.inventory.probe.processes import Processes

        processes = Processes(self.kernel)  # its children look while the inventory is read
        words = [word for word in selectors if word.count("-") != _DASHES]
        of_mdevs = self._mdev_holders([word for word in selectors if word not in words], processes)
        if of_mdevs and not words:
            return of_mdevs
        chosen = self.find(words, every=every)
        from vfioctl.inventory.model.scope import scope_of
        from vfioctl.inventory.probe.holders import read_holders

        inventory = self._seen or self.inventory()
        scope = scope_of(inventory, chosen)
        concerned = [inventory.by_address[address] for address in (*scope.own, *scope.foreign)]
        found = read_holders(self.kernel, concerned, inventory, processes)
        return found.model_copy(
            update={
                "devices": (*found.devices, *(of_mdevs.devices if of_mdevs else ())),
                "holders": (*found.holders, *(of_mdevs.holders if of_mdevs else ())),
                "marks": tuple(each.mark for each in concerned if each.mark),
            }
        )

    def snapshot(self) -> tuple[str, tuple[str, ...]]:
        """The text of a host file, redacted, and the files that could not be read."""
        from vfioctl.kernel.recorded.capture import capture
        from vfioctl.kernel.recorded.tree import form

        tree, unread = capture(self.kernel)
        tree.comments = [f"# recorded from {self.kernel.description} by vfioctl snapshot"]
        return form(tree), tuple(unread)

    def rom(self, device: str) -> tuple[bytes, Rom]:
        """One function's expansion ROM, and what it holds. Raises DeviceInUse, DeviceDead, VerifyError."""
        from vfioctl.binding.probe.rom import read_rom
        from vfioctl.inventory.model.refusals import refuse_marked
        from vfioctl.inventory.selector import select

        inventory = self.inventory()
        (address,) = select(inventory, [device], every=False)
        function = inventory.by_address[address]
        refuse_marked(function)
        return read_rom(self.kernel, function)

    def history(self, *, most: int = -1) -> tuple[JournalEntry, ...]:
        """The changes in the journal, the newest first."""
        return self._journal.entries(most=most)

    # -- changing ----------------------------------------------------------------------------------

    def plan_again(self, saved: Plan) -> Plan:
        """The plan that a saved one was made for, made anew: what a file says is never done unless it is this.

        Raises StalePlan when the host has changed, BadDocument when the file was not made by planning.
        """
        from vfioctl.errors import StalePlan

        asked = saved.intent
        if asked.vgpu_request is not None:
            return self._replanned(saved)
        fresh = self._planned(asked.devices, **asked.model_dump(exclude={"devices"}))
        if fresh == saved:
            return fresh
        changed = [fact.address for fact in saved.facts if fact not in fresh.facts]
        if changed or fresh.nothing_to_do or fresh.facts != saved.facts or fresh.settings != saved.settings:
            raise StalePlan(
                f"{', '.join(changed) or 'the host'} changed after the plan was made", hint="make a new plan"
            )
        raise BadDocument("the plan is not what planning makes of its intent here", hint="make a new plan")

    def unfinished(self) -> tuple[JournalEntry, ...]:
        """Changes that were cut short, the newest first."""
        return self._journal.unfinished() if self.ledger.exists() else ()

    def plan_bind(
        self,
        devices: Sequence[str],
        *,
        every: bool = False,
        driver: str | None = None,
        with_group: bool = False,
        allow_boot_vga: bool = False,
        stop_services: Sequence[str] = (),
        force_holders: bool = False,
    ) -> Plan:
        """What handing the devices to VFIO takes; they are named as for `find`.

        `stop_services`: units that may be stopped where they hold a device (`GPU_SERVICES` are made for it).

        Raises NoIommu, GroupNotViable, DeviceInUse, DeviceDead, BadSpec, and what `find` raises.
        """
        return self._planned(
            devices,
            every=every,
            verb="bind",
            driver=driver,
            with_group=with_group,
            allow_boot_vga=allow_boot_vga,
            stop_services=tuple(stop_services),
            force_holders=force_holders,
        )

    def plan_unbind(
        self,
        devices: Sequence[str],
        *,
        every: bool = False,
        to: str | None = None,
        with_group: bool = False,
        force_holders: bool = False,
    ) -> Plan:
        """What giving the devices back takes; they are named as for `find`. Raises DeviceInUse, BadSpec."""
        return self._planned(
            devices, every=every, verb="unbind", driver=to, with_group=with_group, force_holders=force_holders
        )

    def plan_reset(self, device: str, *, method: str | None = None, force_holders: bool = False) -> Plan:
        """What resetting one device takes. Raises BadSpec, DeviceInUse, HostError."""
        return self._planned([device], verb="reset", method=method, force_holders=force_holders)

    def _planned(self, devices: Sequence[str], *, every: bool = False, **wishes: object) -> Plan:
        from vfioctl.inventory.probe.processes import Processes

        processes = Processes(self.kernel)  # its children look while the inventory is read
        chosen = self.find(devices, every=every)
        from vfioctl.binding.planning import planned
        from vfioctl.core.change import Intent

        intent = Intent.model_validate({"devices": chosen, **wishes})
        inventory = self._seen or self.inventory()
        return planned(self.kernel, inventory, intent, self._journal, boot_id=self._engine.boot_id, processes=processes)

    def apply(self, plan: Plan, *, progress: Progress | None = None) -> Outcome:
        """Does the plan, or leaves the host as it was; see `Engine.apply` for what it raises."""
        return self._engine.apply(plan, progress, seen=self._seen, names=self._type_names)

    def recover(
        self, *, forward: bool = False, progress: Progress | None = None, of_this_boot: bool = True
    ) -> tuple[Outcome, ...]:
        """Finishes what a crash left; see `Engine.recover`."""
        return self._engine.recover(forward=forward, progress=progress, of_this_boot=of_this_boot)
