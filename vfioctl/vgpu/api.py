"""The API for vGPUs and VFs: reading them, planning changes, and creating persistent ones at boot."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from vfioctl.errors import BadSpec
from vfioctl.inventory.api import LEDGER, InventoryApi, Waiting, until_released
from vfioctl.kernel.host_paths import OWN_DEFINITIONS
from vfioctl.kernel.lenient import names_in
from vfioctl.vgpu.ledger.reading import recorded_if_possible
from vfioctl.vgpu.model.kinds import may_be_pf
from vfioctl.vgpu.model.vgpu import Strategy

if TYPE_CHECKING:
    from vfioctl.core.change import Draft, Intent, Outcome, Plan
    from vfioctl.core.events import Cancel, Progress
    from vfioctl.core.restoring import Restored
    from vfioctl.errors import VfioctlError
    from vfioctl.inventory.model.functions import Inventory
    from vfioctl.inventory.model.holders import Holders
    from vfioctl.session import Session
    from vfioctl.vgpu.model.intents import RemoveVgpuIntent
    from vfioctl.vgpu.model.vgpu import Created, Made, VgpuCard, Vgpus
    from vfioctl.vgpu.probe.persistent import Wanted

_MOST = 65_535


class VgpuApi:
    """The vGPUs and VFs of one host. Any method may raise any VfioctlError; each documents its own errors."""

    def __init__(self, session: Session) -> None:
        self._session, self._kernel = session, session.kernel
        self._devices = InventoryApi(session)

    def vgpus(
        self,
        cards: Collection[str] | None = None,
        inventory: Inventory | None = None,
        dialects: Collection[str] | None = None,
    ) -> Vgpus:
        """The cards that offer vGPUs, and all vGPUs; those that vfioctl did not create are foreign.

        `cards`: only these, by address. `inventory`: of the whole host, if it has just been read. `dialects`: only
        these; None for all."""
        from vfioctl.vgpu.probe.scan import VgpuScan

        # its workers read while the models are imported; wedged devices are not read
        (wedged, created, names), problem = recorded_if_possible(self._session)
        physical = None if inventory is None else [f.address for f in inventory.functions if may_be_pf(f)]
        scan = VgpuScan(self._kernel, suspects=wedged, cards=cards, physical=physical, dialects=dialects)
        if problem:
            scan.problems.append((LEDGER, problem))
        from vfioctl.vgpu.model.lookup import with_owners
        from vfioctl.vgpu.probe.inventory import assemble

        return with_owners(assemble(self._kernel, scan, names), created, wedged)

    def created(self) -> Mapping[str, Created]:
        """The ledger's records of what vfioctl created and may still exist, by id."""
        return recorded_if_possible(self._session)[0].created

    def made(self, names: Collection[str]) -> Mapping[str, Made]:
        """How vGPUs were created last, by id, also those that are gone; only those that the journal has."""
        from vfioctl.vgpu.ledger.journaled import read_made

        return read_made(self._session, names)

    def titles(self, cards: Iterable[VgpuCard]) -> Mapping[str, str]:
        """Product names of the cards, by address; unknown cards are left out."""
        from vfioctl.vgpu.probe.inventory import titles

        return titles(self._kernel, cards)

    def parent_called(self, word: str) -> str:
        """The address for a selector such as `gpu0`; any other word unchanged. Reads the inventory only if needed."""
        return self._devices.find([word])[0] if word.startswith("gpu") and word[3:].isdecimal() else word

    def holders(self, selectors: Sequence[str], *, every: bool = False) -> Holders:
        """The holders of functions, with the rest of their cards and groups, and of mediated devices, each given by its
        UUID, or a unique prefix of it. Raises what `find` raises, and BadSpec."""
        from vfioctl.vgpu.lifecycle.holders import holders

        return holders(self._devices, self.vgpus, selectors, every=every)

    def plan_create(  # noqa: PLR0913 - one for each thing that can be asked for
        self,
        type_name: str,
        *,
        parent: str | None = None,
        numa: int | None = None,
        count: int = 1,
        uuids: Sequence[str] = (),
        placement: Strategy = Strategy.BINPACK,
        parameters: Iterable[tuple[str, str]] = (),
        persistent: bool = False,
        exclude: Sequence[str] = (),
    ) -> Plan:
        """The plan that creates `count` vGPUs of a type, given by id, name or profile. `parent`: a card or parent as in
        `vgpus`, or `gpu0`. `uuids`: one for each mediated device; generated if empty. `exclude`: names of parents to
        avoid. Raises NoCapacity, DeviceInUse, BadSpec, UnknownDevice."""
        from uuid import uuid4

        from vfioctl.units import Uuid
        from vfioctl.vgpu.model.intents import CreateVgpuIntent, asked, refuse_uuids
        from vfioctl.vgpu.model.kinds import MDEV

        identifiers = tuple(Uuid(text) for text in uuids)
        refuse_uuids(identifiers, count)
        names = identifiers or tuple(Uuid(str(uuid4())) for _ in range(min(count, _MOST)))
        intent = asked(
            lambda: CreateVgpuIntent(
                type=type_name,
                parent=None if parent is None else self.parent_called(parent),
                numa=numa,
                count=count,
                uuids=names,
                placement=placement,
                parameters=tuple(parameters),
                persistent=persistent,
                exclude=tuple(exclude),
            )
        )
        plan = self._plan(intent)
        if identifiers and not plan.changes_of(MDEV):
            raise BadSpec(f"{type_name} is created on a VF, and has its address as id", hint="leave out --uuid")
        return plan

    def create(  # noqa: PLR0913 - one for each thing that can be asked for
        self,
        type_name: str,
        *,
        parent: str | None = None,
        numa: int | None = None,
        count: int = 1,
        uuids: Sequence[str] = (),
        placement: Strategy = Strategy.BINPACK,
        parameters: Iterable[tuple[str, str]] = (),
        persistent: bool = False,
        exclude: Sequence[str] = (),
        progress: Progress | None = None,
        cancel: Cancel | None = None,
        confirm: Callable[[Plan], None] | None = None,
        elsewhere: Callable[[VfioctlError], None] | None = None,
    ) -> Outcome:
        """Creates vGPUs; see `plan_create`. If a parent has been taken meanwhile, retries on others, if none is named.
        `confirm`: called with each plan before it is carried out; may raise to cancel. `elsewhere`: called with the
        NoCapacity error before each retry. Raises what `plan_create` and `Session.apply` raise."""
        from vfioctl.vgpu.lifecycle.restore import create_somewhere

        make = partial(
            self.plan_create,
            type_name,
            parent=parent,
            numa=numa,
            count=count,
            uuids=uuids,
            placement=placement,
            parameters=tuple(parameters),
            persistent=persistent,
        )

        def apply(plan: Plan) -> Outcome:
            if confirm:
                confirm(plan)
            return self._session.apply(plan, progress=progress, cancel=cancel)

        return apply(make(exclude=exclude)) if parent else create_somewhere(make, apply, exclude, elsewhere)

    def plan_remove(
        self,
        instances: Sequence[str],
        *,
        foreign: bool = False,
        definition: bool = False,
        force_holders: bool = False,
        wait: float = 0.0,
        waiting: Waiting | None = None,
    ) -> Plan:
        """The plan that removes vGPUs, given by UUID, unique prefix of a UUID, or address of a VF. `definition`: also
        definitions that vfioctl did not write, which takes `foreign`. `wait`: seconds to wait for holders; `waiting` is
        called meanwhile. Raises Foreign, DeviceInUse, BadSpec."""
        from vfioctl.inventory.model.values import subject
        from vfioctl.vgpu.model.intents import RemoveVgpuIntent, asked

        def intent() -> RemoveVgpuIntent:
            names = tuple(dict.fromkeys(subject(name) for name in self.whole_names(instances)))
            return RemoveVgpuIntent(vgpus=names, foreign=foreign, definition=definition, force_holders=force_holders)

        wanted = asked(intent)
        return until_released(lambda: self._plan(wanted), wait=wait, waiting=waiting)

    def whole_names(self, words: Sequence[str]) -> list[str]:
        """The ids of the vGPUs with these addresses, UUIDs or prefixes of UUIDs. Raises UnknownDevice, BadSpec."""
        from vfioctl.vgpu.model.lookup import instance_called, is_whole

        if all(map(is_whole, words)):
            return [word.lower() for word in words]
        vgpus = self.vgpus()
        return [instance_called(vgpus, word).id for word in words]

    def plan_vfs(
        self,
        device: str,
        count: int | None,
        *,
        foreign: bool = False,
        persistent: bool = False,
        wait: float = 0.0,
        waiting: Waiting | None = None,
    ) -> Plan:
        """The plan that sets the number of VFs of a PF; None: all that it supports. `wait`: see `plan_remove`. Raises
        BadSpec, DeviceInUse, Foreign, HostError, and what `InventoryApi.find` raises."""

        def make() -> Plan:
            inventory = self._devices.inventory()
            (address,) = self._devices.chosen(inventory, [device])
            from vfioctl.vgpu.model.intents import SetVfsIntent, asked
            from vfioctl.vgpu.probe.plan_facts import total_vfs

            wanted = total_vfs(self._kernel, address) if count is None else count
            intent = asked(lambda: SetVfsIntent(devices=(address,), vfs=wanted, foreign=foreign, persistent=persistent))
            if wanted != len(inventory.by_address[address].virtfns):
                self._session.refuse_parts([address])
            return self._plan(intent, inventory)

        return until_released(make, wait=wait, waiting=waiting)

    def plan_profile(self, device: str, values: Iterable[tuple[str, str]]) -> Plan:
        """The plan that sets profile values of an xe card: pairs such as `vf1/exec_quantum_ms` and its value. Raises
        BadSpec, and what `InventoryApi.find` raises."""
        inventory = self._devices.inventory()
        (address,) = self._devices.chosen(inventory, [device])
        from vfioctl.vgpu.model.intents import ProfileIntent

        return self._plan(ProfileIntent(devices=(address,), parameters=tuple(values)), inventory)

    def draft_kept(self, intent: Intent, names: Sequence[str]) -> Draft:
        """The draft for an intent that makes vGPUs vfioctl's and persistent that exist, whoever created them.

        Raises UnknownDevice, HostError for one that is only defined, DeviceInUse for one that does not answer or that
        is defined as another type, BadSpec for VFs without a type."""
        from vfioctl.vgpu.lifecycle.planning import Planning

        return Planning(self._session, self._devices, None).keep(intent, names)

    def persistent(self) -> tuple[str, ...]:
        """The definitions of what is created at boot: paths below /etc in the order of creation, damaged files last."""
        persistent, damaged = self.definitions()
        return (*persistent, *damaged)

    def plan_persistent(self, file: str) -> Plan | None:
        """The plan that creates what one definition defines; None when it exists already. Raises BadDocument for a
        damaged file, DeviceMissing if another device has the address, and what `plan_create` and `plan_vfs` raise."""
        from vfioctl.vgpu.lifecycle.planning import draft_persistent

        draft = draft_persistent(self._kernel, file, *self.definitions(), self.vgpus, self._draft)
        return self._session.plan(draft) if draft else None

    def restore(
        self,
        *,
        wait: float = 0.0,
        progress: Progress | None = None,
        cancel: Cancel | None = None,
        dry_run: bool = False,
    ) -> Restored:
        """First recovers a change that a reboot interrupted, then creates what is persistent and missing: VFs, then
        vGPUs, each even if others fail. `wait`: seconds to retry failures: a driver may not be loaded yet at boot."""
        from vfioctl.core.restoring import recover_interrupted, restore

        if dry_run:
            return restore(self.persistent(), self.plan_persistent, None, {}, wait=wait)
        interrupted = recover_interrupted(self._session.engine)
        apply = partial(self._session.apply, progress=progress, cancel=cancel)
        return restore(self.persistent(), self.plan_persistent, apply, interrupted, wait=wait, cancel=cancel)

    def definitions(self) -> tuple[dict[str, Wanted], dict[str, str]]:
        """The intent of each definition, by path in the order of creation, and why others cannot be used."""
        created = self.created()
        if not any(record.persistent for record in created.values()) and not names_in(self._kernel, OWN_DEFINITIONS):
            return {}, {}  # importing what reads them takes long
        from vfioctl.vgpu.probe.persistent import read_persistent

        return read_persistent(self._kernel, created)

    def replan(self, intent: Intent) -> Plan:
        return self._plan(intent)

    def _plan(self, intent: Intent, inventory: Inventory | None = None) -> Plan:
        return self._session.plan(self._draft(intent, inventory))

    def _draft(self, intent: Intent, inventory: Inventory | None = None) -> Draft:
        from vfioctl.vgpu.lifecycle.planning import Planning

        return Planning(self._session, self._devices, inventory).draft(intent)
