"""The library's entry point: one `Host` object per host, live, captured, recorded or simulated.

    >>> from vfioctl.host import Host
    >>> host = Host.recorded("workstation")
    >>> plan = host.binding.plan_bind(["gpu1"])
    >>> [step.target for step in plan.steps][0]
    'vfio-pci'

Every method may raise any class of the error tree in `vfioctl.errors`; docstrings name the most specific ones."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from vfioctl import sources
from vfioctl.session import Session

if TYPE_CHECKING:
    from datetime import datetime

    from vfioctl.binding.api import BindingApi
    from vfioctl.claims.api import ClaimsApi
    from vfioctl.containers.api import ContainersApi
    from vfioctl.core.change import JournalEntry, Outcome, Plan, Repair
    from vfioctl.core.events import Cancel, Progress
    from vfioctl.doctor.api import DoctorApi
    from vfioctl.domain.api import DomainApi
    from vfioctl.inventory.api import InventoryApi
    from vfioctl.inventory.model.functions import Inventory
    from vfioctl.inventory.model.holders import Holders
    from vfioctl.inventory.model.values import PciAddress
    from vfioctl.kernel.simulated.faults import Fault
    from vfioctl.kubelet.api import KubeletApi
    from vfioctl.overview.api import OverviewApi
    from vfioctl.overview.model.event import HostEvent, Stop
    from vfioctl.overview.model.overview import Overview, Part
    from vfioctl.persist.api import PersistApi
    from vfioctl.placement.api import PlacementApi
    from vfioctl.sharing.api import SharingApi
    from vfioctl.state.api import StateApi
    from vfioctl.vgpu.api import VgpuApi


class Host:
    """A host: this machine, a captured directory, a recorded file, or a simulation.

    Each subsystem is an attribute: `host.binding`, `host.vgpu`. Every call reads the host again; nothing is cached."""

    def __init__(self, session: Session) -> None:
        self.session = session

    @classmethod
    def live(cls, ledger: Path | None = None) -> Host:
        """Return the host that is this machine."""
        return cls(sources.live(Session, ledger))

    @classmethod
    def at(cls, root: Path | str, ledger: Path | None = None) -> Host:
        """Return a read-only host from a captured `sys/ proc/ dev/` tree. Raises BadDocument."""
        return cls(sources.at(Session, Path(root), ledger))

    @classmethod
    def recorded(cls, name: str, ledger: Path | None = None) -> Host:
        """Return a read-only host from a host file, or a bundled host by name. Raises BadDocument."""
        return cls(sources.recorded(Session, name, ledger))

    @classmethod
    def simulated(cls, name: str, ledger: Path | None = None, *, faults: Sequence[Fault] = ()) -> Host:
        """Return a simulated host, which accepts changes, from a host file or a bundled name. Raises BadDocument."""
        return cls(sources.simulated(Session, name, ledger, faults=faults))

    @cached_property
    def devices(self) -> InventoryApi:
        """PCI functions, IOMMU groups and holders. `host.inventory()` is short for `host.devices.inventory()`."""
        from vfioctl.inventory.api import InventoryApi

        return InventoryApi(self.session)

    @cached_property
    def binding(self) -> BindingApi:
        """Bind functions to VFIO and back, reset them, read their ROMs."""
        from vfioctl.binding.api import BindingApi

        return BindingApi(self.session)

    @cached_property
    def vgpu(self) -> VgpuApi:
        """List, create and remove vGPUs and VFs."""
        from vfioctl.vgpu.api import VgpuApi

        return VgpuApi(self.session)

    @cached_property
    def placement(self) -> PlacementApi:
        """Find the devices, CPUs and hugepages for a request."""
        from vfioctl.placement.api import PlacementApi

        return PlacementApi(self.session)

    @cached_property
    def claims(self) -> ClaimsApi:
        """Claim devices, CPUs and hugepages for an owner, and release them."""
        from vfioctl.claims.api import ClaimsApi

        return ClaimsApi(self.session)

    @cached_property
    def containers(self) -> ContainersApi:
        """Give claimed devices to containers: CDI files, OCI bundles, Kata Containers."""
        from vfioctl.containers.api import ContainersApi

        return ContainersApi(self.session)

    @cached_property
    def domain(self) -> DomainApi:
        """Build libvirt domains, and check and provision them."""
        from vfioctl.domain.api import DomainApi

        return DomainApi(self.session)

    @cached_property
    def persist(self) -> PersistApi:
        """What each boot restores."""
        from vfioctl.persist.api import PersistApi

        return PersistApi(self.session)

    @cached_property
    def state(self) -> StateApi:
        """Drivers, VFs, vGPUs and what each boot restores, as one document."""
        from vfioctl.state.api import StateApi

        return StateApi(self.session)

    @cached_property
    def doctor(self) -> DoctorApi:
        """Check what stops or harms passthrough."""
        from vfioctl.doctor.api import DoctorApi

        return DoctorApi(self.session)

    @cached_property
    def kubelet(self) -> KubeletApi:
        """Give devices to pods of Kubernetes."""
        from vfioctl.kubelet.api import KubeletApi

        return KubeletApi(self.session)

    @cached_property
    def sharing(self) -> SharingApi:
        """Shares of GPUs among containers, and what enforces them."""
        from vfioctl.sharing.api import SharingApi

        return SharingApi(self.session)

    @cached_property
    def _overviews(self) -> OverviewApi:
        from vfioctl.overview.api import OverviewApi

        return OverviewApi(self.session)

    def overview(self, *, without: Collection[Part] = ()) -> Overview:
        """Return everything about the host in one look, without these parts; see `OverviewApi.overview`."""
        return self._overviews.overview(without=without)

    def refresh(
        self, last: Overview, addresses: Collection[PciAddress] = (), *, whole: Collection[Part] = ()
    ) -> Overview:
        """Return `last` with these functions, and what hangs on them, read again; see `OverviewApi.refresh`."""
        return self._overviews.refresh(last, addresses, whole=whole)

    def watch(self, *, stop: Stop, interval: float = 2.0) -> Iterator[HostEvent]:
        """Yield the host's events until `stop` returns true; see `OverviewApi.watch`."""
        return self._overviews.watch(stop=stop, interval=interval)

    def inventory(self) -> Inventory:
        """Return the host's devices as they are now, with their wedged and dead marks."""
        return self.devices.inventory()

    def find(self, selectors: Sequence[str], *, every: bool = False) -> tuple[PciAddress, ...]:
        """Return the functions named by `0000:41:00.0`, `41:00.0`, `gpu0` or `10de:2330`; see `InventoryApi.find`."""
        return self.devices.find(selectors, every=every)

    def holders(self, selectors: Sequence[str], *, every: bool = False) -> Holders:
        """Return the holders of devices; a mediated device is named by its UUID. Raises UnknownDevice."""
        from vfioctl.vgpu.api import VgpuApi

        return VgpuApi(self.session).holders(selectors, every=every)

    def snapshot(self) -> tuple[str, tuple[str, ...]]:
        """Return the redacted text of a host file, and the files that could not be read."""
        from vfioctl.kernel.recorded.capture import captured_text

        return captured_text(self.session.kernel)

    def history(
        self, *, most: int = -1, since: datetime | None = None, device: str | None = None, owner: str | None = None
    ) -> tuple[JournalEntry, ...]:
        """Return at most `most` changes of the journal, the newest first; all if `most` is negative.

        `since`: only changes that began then or later. `device`: only changes of it, named as for `find`;
        a device that is gone by its address, a vGPU by the beginning of its UUID. `owner`: only changes that were made
        for a claim of this owner. Raises BadAddress, UnknownDevice, BadSpec."""
        from vfioctl.core.history import stamp

        begin = stamp(since) if since else ""
        if (device, owner) == (None, None):
            return self.session.entries(most=most, since=begin)
        history = self.session.entries()
        if device is not None:
            devices = self._recorded(history, device)
            history = tuple(entry for entry in history if not entry.devices.isdisjoint(devices))
        if owner is not None:
            theirs = self.claims.names_of(owner)
            history = tuple(entry for entry in history if entry.made_for in theirs)
        return tuple(entry for entry in history if entry.began >= begin)[: most if most >= 0 else None]

    def _recorded(self, entries: Sequence[JournalEntry], device: str) -> Collection[str]:
        from vfioctl.core.history import recorded_devices
        from vfioctl.errors import BadAddress, UnknownDevice

        try:
            return self.find([device], every=True)
        except (BadAddress, UnknownDevice):
            if gone := recorded_devices(entries, device):
                return gone
            raise

    def change(self, name: str) -> JournalEntry:
        """Return the change with this number, or whose plan's id begins so. Raises BadSpec; NotPermitted for one that
        only root may read."""
        from vfioctl.core.history import named
        from vfioctl.errors import BadSpec, NotPermitted

        try:
            return named(self.session.entries(), name)
        except BadSpec as error:
            if not self.session.reads_published:
                raise
            from vfioctl.core.published_history import OLDER

            raise NotPermitted(f"{error.message}; {OLDER}", hint="run it as root") from None

    def prunable(self, *, keep: int = 0, before: datetime | None = None) -> tuple[JournalEntry, ...]:
        """Return the changes that `prune` may delete; see `vfioctl.core.history.prunable`."""
        from vfioctl.core.history import prunable

        journal = self.session.journal
        return prunable(journal.entries(), needed=journal.needed(), keep=keep, before=before)

    def prune(self, entries: Sequence[JournalEntry]) -> int:
        """Delete changes from the journal, except those that are needed, and return how many. Raises StoreDamaged."""
        return self.session.journal.delete(entries) if entries else 0

    def unfinished(self) -> tuple[JournalEntry, ...]:
        """Return the unfinished changes, the newest first: interrupted, or under way (`JournalEntry.under_way`)."""
        return self.session.unfinished()

    def why_read_only(self) -> str:
        """Return why nothing can be changed here; empty if it can. See `Session.why_read_only`."""
        return self.session.why_read_only()

    def read_plan(self, text: str | bytes) -> Plan:
        """Read a plan from JSON. Raises BadDocument."""
        return self.session.registry.read_plan(text)

    def read_plans(self, text: str | bytes) -> tuple[Plan, ...] | None:
        """Read the plans of a dry run that makes several; None for any other document. Raises BadDocument."""
        return self.session.registry.read_plans(text)

    def replan(self, saved: Plan) -> Plan:
        """Plan the saved plan's intent again; the result must equal it. Raises StalePlan, or BadDocument if forged."""
        from vfioctl.core.verify import refuse_forged
        from vfioctl.errors import BadDocument, StalePlan

        refuse_forged(self.session.registry, saved)
        fresh = self.session.plan_again(saved.intent)
        now = {(fact.kind, fact.subject): fact for fact in fresh.facts}
        source = self.session.registry.source
        changed = [f.subject for f in saved.facts if not source(f.kind).holds(f, now.get((f.kind, f.subject)))]
        same = fresh.model_copy(update={"id": saved.id, "notes": saved.notes, "facts": saved.facts}) == saved
        if same and not changed:
            return fresh
        if changed or fresh.nothing_to_do or fresh.changes != saved.changes:
            raise StalePlan(
                f"{', '.join(changed) or 'the host'} changed after the plan was made", hint="make a new plan"
            )
        raise BadDocument("the plan is not what planning makes of its intent here", hint="make a new plan")

    def apply(self, plan: Plan, *, progress: Progress | None = None, cancel: Cancel | None = None) -> Outcome:
        """Apply the plan, or roll back and raise; see `Engine.apply` for the errors."""
        return self.session.apply(plan, progress=progress, cancel=cancel)

    def plan_recovery(self, *, forward: bool = False) -> tuple[Repair, ...]:
        """Return what `recover` would do now."""
        return self.session.engine.plan_recovery(forward=forward)

    def recover(
        self, *, forward: bool = False, progress: Progress | None = None, of_this_boot: bool = True
    ) -> tuple[Outcome, ...]:
        """Finish interrupted changes; see `Engine.recover`."""
        return self.session.engine.recover(forward=forward, progress=progress, of_this_boot=of_this_boot)
