"""What a host's library does with vGPUs and VFs: a part of `Host`, for reading apart.

Every method may raise any class of the error tree in `vfioctl.errors`; a method names those of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from vfioctl.errors import StoreDamaged, UnknownDevice

if TYPE_CHECKING:
    from vfioctl.core.change import Intent, Plan
    from vfioctl.core.engine import Engine
    from vfioctl.core.journal import Journal
    from vfioctl.core.snapshot import Names
    from vfioctl.inventory.model.functions import Inventory, Mark
    from vfioctl.inventory.model.holders import Holders
    from vfioctl.inventory.model.values import PciAddress, Subject
    from vfioctl.inventory.probe.processes import Processes
    from vfioctl.kernel.protocol import Kernel
    from vfioctl.vgpu.model.vgpu import Made, VgpuCard, Vgpus


_MOST = 65_535


class HostVgpus:
    """See `Host`."""

    kernel: Kernel
    ledger: Path
    _seen: Inventory | None
    _type_names: Names = {}  # noqa: RUF012 - replaced, never changed

    if TYPE_CHECKING:

        @cached_property
        def _journal(self) -> Journal: ...
        @cached_property
        def _engine(self) -> Engine: ...

        def inventory(self) -> Inventory: ...
        def find(self, selectors: Sequence[str], *, every: bool = False) -> tuple[PciAddress, ...]: ...
        def _marks(self) -> Mapping[Subject, Mark]: ...

    def vgpus(self) -> Vgpus:
        """What can be sliced here, and all vGPUs; those that vfioctl did not make are foreign."""
        from vfioctl.vgpu.probe.scan import VgpuScan

        # its children read while the models are imported; of a wedged device nothing is asked
        wedged, made, names = self._known_of_vgpus()
        scan = VgpuScan(self.kernel, suspects=wedged)
        from vfioctl.vgpu.model.lookup import with_owners
        from vfioctl.vgpu.probe.inventory import assemble

        return with_owners(assemble(self.kernel, scan, names), made, wedged)

    def _known_of_vgpus(self) -> tuple[Mapping[str, str], Mapping[str, Made], Names]:
        """Those that are wedged, those that vfioctl made, and names. Nothing where the ledger cannot be used."""
        if not self.ledger.exists():
            return {}, {}, {}
        from vfioctl.core.snapshot import BOOT_ID, LedgerSnapshot
        from vfioctl.core.store import Store

        glance = LedgerSnapshot(Store(self.ledger), boot_id=self.kernel.read(BOOT_ID))
        with suppress(StoreDamaged):
            return glance.wedged(), glance.made(), glance.type_names()
        return {}, {}, {}

    def _mdev_holders(self, words: Sequence[str], processes: Processes) -> Holders | None:
        if not words:
            return None
        from vfioctl.inventory.model.values import Uuid
        from vfioctl.inventory.probe.holders import read_mdev_holders

        mdevs = [Uuid(word) for word in words]
        known = {vgpu.id: vgpu.iommu_group for vgpu in self.vgpus().instances if vgpu.state != "defined"}
        if missing := [mdev for mdev in mdevs if mdev not in known]:
            raise UnknownDevice(f"there is no vGPU {missing[0]} here", hint="vfioctl vgpu list shows those that are")
        marks = self._marks()
        found = read_mdev_holders(self.kernel, mdevs, processes, known)
        return found.model_copy(update={"marks": tuple(marks[mdev] for mdev in mdevs if mdev in marks)})

    def titles(self, cards: Iterable[VgpuCard]) -> Mapping[str, str]:
        """What those cards are, by their address; nothing for those that no database knows."""
        from vfioctl.vgpu.probe.inventory import titles

        return titles(self.kernel, cards)

    def plan_create(  # noqa: PLR0913 - one for each thing that can be asked for
        self,
        type_name: str,
        *,
        parent: str | None = None,
        numa: int | None = None,
        count: int = 1,
        uuids: Sequence[str] = (),
        placement: str = "binpack",
        parameters: Iterable[tuple[str, str]] = (),
        persistent: bool = False,
        exclude: Sequence[str] = (),
    ) -> Plan:
        """What making so many vGPUs of a type takes; it is named by id, name or profile.

        `parent`: a card or a place on it, as `vgpus` names them. `uuids`: one for each mdev; made up where there are
        none. `placement`: binpack, spread or numa. `shun`: places to avoid.

        Raises NoCapacity, DeviceInUse, BadSpec, UnknownDevice.
        """
        from uuid import uuid4

        names = tuple(uuids) or tuple(str(uuid4()) for _ in range(min(count, _MOST)))
        return self._planned_by(
            "vgpu create",
            type=type_name,
            parent=parent,
            numa=numa,
            count=count,
            uuids=names,
            placement=placement,
            parameters=tuple(parameters),
            persistent=persistent,
            exclude=tuple(exclude),
        )

    def plan_remove(self, instances: Sequence[str], *, foreign: bool = False, force_holders: bool = False) -> Plan:
        """What removing vGPUs takes: UUIDs, or addresses of VFs. Raises Foreign, DeviceInUse, BadSpec."""
        return self._planned_by(
            "vgpu remove",
            force_holders=force_holders,
            foreign=foreign,
            instances=tuple(dict.fromkeys(name.lower() for name in instances)),
        )

    def plan_vfs(self, device: str, count: int | None, *, foreign: bool = False, persistent: bool = False) -> Plan:
        """What it takes for a PF to have so many VFs; all that it can have for None.

        Raises BadSpec, DeviceInUse, Foreign, HostError.
        """
        (address,) = self.find([device])
        if count is None:
            from vfioctl.kernel.lenient import text_of
            from vfioctl.vgpu.dialects.dialect import number_in

            count = number_in(text_of(self.kernel, f"/sys/bus/pci/devices/{address}/sriov_totalvfs")) or 0
        return self._planned_by("sriov set", address, vfs=count, foreign=foreign, persistent=persistent)

    def kept(self) -> tuple[str, ...]:
        """What was made with `persistent`, in the order in which it is made again: files below /etc.

        Damaged ones come last.
        """
        from vfioctl.vgpu.planning import read_persistent

        found, damaged = read_persistent(self.kernel, self._known_of_vgpus()[1])
        return (*found, *damaged)

    def plan_kept(self, file: str) -> Plan | None:
        """What it takes to make again what one of those files keeps; None where it is there already.

        Raises BadDocument for a damaged one, and what making raises.
        """
        from vfioctl.errors import BadDocument
        from vfioctl.vgpu.planning import is_there, read_persistent, refuse_other_vfs

        found, damaged = read_persistent(self.kernel, self._known_of_vgpus()[1])
        if file in damaged:
            raise BadDocument(f"{file}: {damaged[file]}", hint="repair the file, or remove it")
        if file not in found:
            return None
        if is_there(self.vgpus(), found[file]):
            return None
        plan = self._planned_for(found[file])
        refuse_other_vfs(plan)
        return plan

    def plan_profile(self, device: str, values: Iterable[tuple[str, str]]) -> Plan:
        """What setting profile values of an xe card takes, each as `vf1/exec_quantum_ms` and its value."""
        (address,) = self.find([device])
        return self._planned_by("sriov profile", address, parameters=tuple(values))

    def _planned_by(self, verb: str, *devices: str, force_holders: bool = False, **wishes: object) -> Plan:
        from vfioctl.core.store import Store

        self.kernel.prepare(Store(self.ledger).lock_file)  # it starts while the models are imported
        from pydantic import ValidationError

        from vfioctl.core.change import Intent
        from vfioctl.errors import BadSpec

        try:
            intent = Intent.model_validate(
                {"verb": verb, "devices": devices, "force_holders": force_holders, "vgpu_request": wishes}
            )
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise BadSpec(f"{first['loc'][-1]}: {first['msg']}") from None
        # devices that are named were found by an inventory just now
        return self._planned_for(intent, seen=self._seen if devices else None)

    def _replanned(self, saved: Plan) -> Plan:
        """See `plan_again`. Room elsewhere, which the notes tell of, may have changed: nothing rests on it."""
        from vfioctl.binding.plan.steps import follows
        from vfioctl.errors import BadDocument, StalePlan

        if not follows(saved):
            raise BadDocument("the steps of the plan do not follow from its changes", hint="make a new plan")
        fresh = self._planned_for(saved.intent)
        if fresh.model_copy(update={"id": saved.id, "notes": saved.notes}) != saved:
            raise StalePlan("the vGPUs here changed after the plan was made", hint="make a new plan")
        return fresh

    def _planned_for(self, intent: Intent, *, seen: Inventory | None = None) -> Plan:
        from vfioctl.core.snapshot import LedgerSnapshot
        from vfioctl.vgpu.planning import planned, read_concerned

        glance = LedgerSnapshot(self._journal.store, boot_id=self._engine.boot_id)
        found = read_concerned(self.kernel, glance, intent)
        # only of those that the kernel stops listing
        cards = (card for card in found.cards if card.dialect == "vendor-vfio")
        self._type_names = {card.id: {kind.id: kind.name for kind in card.types if kind.name} for card in cards}
        return planned(self.kernel, intent, found, glance.made(), lambda: seen or self.inventory())
