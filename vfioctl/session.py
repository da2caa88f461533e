"""The session that every subsystem gets: kernel, ledger, engine, registry. May not cache the host's state."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from vfioctl.config import Config
from vfioctl.core.locations import import_object
from vfioctl.errors import KernelRefused, StalePlan, StoreDamaged, VfioctlError
from vfioctl.kernel.lenient import text_of
from vfioctl.published_ledger import PublishedLedger
from vfioctl.subsystems import SUBSYSTEMS, Subsystem

if TYPE_CHECKING:  # listings start faster without the store and the engine
    from vfioctl.core.change import Draft, Intent, JournalEntry, Outcome, Plan
    from vfioctl.core.engine import Engine
    from vfioctl.core.events import Cancel, Progress
    from vfioctl.core.journal import Journal
    from vfioctl.core.published import BeingChanged, MarkRow, OpenChange, Published
    from vfioctl.core.registry import Registry
    from vfioctl.core.reservations import Reservation
    from vfioctl.core.store import Store
    from vfioctl.kernel.protocol import Kernel

T = TypeVar("T")
BOOT_ID = "/proc/sys/kernel/random/boot_id"
MACHINE_ID = "/etc/machine-id"
LEDGER = Path("/var/lib/vfioctl/ledger.db")


class Session:
    """One host and its ledger. Timeouts in seconds: `settle` for a driver to appear, `lock_wait` for the lock."""

    def __init__(
        self,
        kernel: Kernel,
        ledger: Path,
        *,
        settle: float = 10.0,
        lock_wait: float = 10.0,
        config: Config = Config(),  # noqa: B008 - it is frozen
        subsystems: Sequence[Subsystem] = SUBSYSTEMS,
        public: Path | None = None,
    ) -> None:
        """`public`: where root publishes what other users may know of the ledger."""
        self.kernel, self.ledger, self.config, self.subsystems = kernel, ledger, config, tuple(subsystems)
        self._settle, self.lock_wait, self._public = settle, lock_wait, public
        self._ledger_files = (ledger, Path(f"{ledger}-wal"), *([public] if public else []))
        self.reservation = ""  # that changes are made for; see `acting_for`

    @cached_property
    def registry(self) -> Registry:
        from vfioctl.core.registry import Registry

        return Registry(self.subsystems)

    @cached_property
    def store(self) -> Store:
        from vfioctl.core.store import Store

        migrations = [m for row in self.subsystems if row.migrations for m in import_object(row.migrations)]
        own, public = self.ledger == LEDGER, self._public
        return Store(self.ledger, migrations, own_directory=own, published=public, machine_id=lambda: self._machine_id)

    @cached_property
    def _machine_id(self) -> str:
        """Return the host's machine-id; empty if it has none, or not yet (machine-id(5))."""
        text = text_of(self.kernel, MACHINE_ID)
        return text if re.fullmatch("[0-9a-f]{32}", text) else ""

    @cached_property
    def journal(self) -> Journal:
        from vfioctl.core.journal import Journal

        return Journal(self.store, self.registry, self.publish)

    @cached_property
    def engine(self) -> Engine:
        """The engine. Raises BadSpec if the configuration cannot be used: no change uses other timeouts."""
        from vfioctl.core.engine import Engine

        if self.config.problem:
            raise self.config.problem
        return Engine(self.kernel, self.journal, self.registry, settle=self._settle, lock_wait=self.lock_wait)

    @property
    def boot_id(self) -> str:
        """The boot id of the running kernel."""
        return self.kernel.read(BOOT_ID)

    @property
    def known_boot_id(self) -> str:
        """The same; empty if the host does not report it, as a captured directory may not."""
        return text_of(self.kernel, BOOT_ID)

    @property
    def problem(self) -> str:
        """Why the configuration cannot be used, for listings, which use the defaults; empty if it can."""
        return f"{self.config.problem.message}: the default timeouts are used" if self.config.problem else ""

    def settings(self, name: str) -> Any:
        """Return a subsystem's table of the configuration, validated by its model. Raises BadSpec."""
        from vfioctl.settings import validated_of

        return validated_of(self.config, name, self.subsystems)

    def why_read_only(self) -> str:
        """Return why nothing can be changed here, in the words of the refusal and its hint; empty if it can.

        Writes nothing. A single change may still be refused: for holders, a claim, a file that it alone needs."""
        from vfioctl.core.permission import why_read_only

        return why_read_only(self.kernel, self.config.problem, self.store.refuse_unwritable)

    @property
    def published(self) -> PublishedLedger:
        """What other users may know of the ledger."""
        return PublishedLedger(self._public, self.ledger, lambda: self.boot_id)

    def ledger_stamp(self) -> object:
        """Return a value that differs when another process has written the ledger, or published something else of it.
        Two writes within a few milliseconds may have the same."""
        from vfioctl.kernel.feeds import stamp

        return stamp(*self._ledger_files)

    def from_ledger(self, ask: Callable[[], T], empty: T) -> tuple[T, str]:
        """Return what `ask` reads and no problem; or `empty` and why not, so that a listing can go on."""
        try:
            return ask(), ""
        except (StoreDamaged, KernelRefused) as error:
            return empty, f"{error.message}: marks, owners and unfinished changes are not shown"
        except OSError as error:
            return empty, f"the ledger {self.ledger} cannot be read: {error.strerror}"

    def ask_ledger(self, ask: Callable[[Store], T], published: Callable[[Published], T], empty: T) -> T:
        """Return what `ask` reads from the ledger, or `empty` if there is none. Raises StoreDamaged, KernelRefused.

        If only root may read the ledger, return what `published` reads from the document that root publishes."""
        if not self._is_known:
            return empty
        return published(self.published.read()) if self._is_closed else ask(self.store)

    @property
    def reads_published(self) -> bool:
        """Whether this user may not read the ledger, and knows only what root publishes of it."""
        return self._is_known and self._is_closed

    @property
    def _is_closed(self) -> bool:
        return self._public is not None and not os.access(self.ledger, os.R_OK, effective_ids=True)

    @property
    def _is_known(self) -> bool:
        """Whether there is a ledger, or may be one of which this user may know only what is published."""
        try:
            return self.has_ledger
        except StoreDamaged:
            if self._public is None:
                raise
            return True

    def marks(self) -> Sequence[MarkRow]:
        """Return the marks of this boot. Raises StoreDamaged, KernelRefused."""

        def ask(store: Store) -> Sequence[MarkRow]:
            from vfioctl.core.snapshot import read_marks

            return read_marks(store, boot_id=self.boot_id)

        return self.ask_ledger(ask, lambda document: document.marks, ())

    def being_changed(self) -> tuple[BeingChanged, ...]:
        """Return each change that is under way or was interrupted, the newest first, without parsing its plan.

        Raises StoreDamaged, KernelRefused."""
        changes = self._told()
        ended = changes and changes[0].process is None  # or it has ended since it was read: no process makes it then
        return self._told() if ended else changes

    def _told(self) -> tuple[BeingChanged, ...]:
        from vfioctl.core.published import with_makers

        def ask(store: Store) -> tuple[OpenChange, ...]:
            from vfioctl.core.snapshot import read_unfinished

            return read_unfinished(store)

        none: tuple[OpenChange, ...] = ()
        return with_makers(self.ask_ledger(ask, lambda document: document.unfinished, none))

    def acting_for(self, reservation: str, *, lock_wait: float | None = None) -> Self:
        """Return a session whose changes are made for this reservation, which does not refuse them. `lock_wait`: how
        long they wait for other changes, in seconds; as those of this session if it is None."""
        session = copy(self)
        session.reservation = reservation
        if lock_wait is not None:
            session.lock_wait = lock_wait
            vars(session).pop("engine", None)  # it has the time of this session
        return session

    def reservations(self) -> tuple[Reservation, ...]:
        """Return what subsystems have reserved. Raises StoreDamaged, KernelRefused."""
        if not self._is_known:
            return ()
        reading = (import_object(row.reservations) for row in self.subsystems if row.reservations)
        return tuple(reservation for read in reading for reservation in read(self))

    def known_reservations(self) -> tuple[tuple[Reservation, ...], str]:
        """Return what subsystems have reserved, and no problem; or nothing, and why the ledger cannot be read."""
        return self.from_ledger(self.reservations, ())

    def refuse_parts(self, subjects: Collection[str]) -> None:
        """Raise ClaimConflict, which says who, if others have reserved a VF or vGPU of a device."""
        for reservation in self.known_reservations()[0]:
            if reservation.subject in subjects and not reservation.whole and reservation.by != self.reservation:
                raise reservation.conflict()

    def publish(self) -> None:
        """As root, write what other users may know of the ledger, if that is not what is published."""
        if os.geteuid() == 0:
            rows = [row for row in self.subsystems if row.published]
            self.published.write(
                lambda: self.store,
                lambda: {row.name: import_object(row.published) for row in rows},
                lambda: {row.name: import_object(row.published_to_group or row.published) for row in rows},
            )

    @property
    def has_ledger(self) -> bool:
        """Whether there is a ledger. Raises StoreDamaged if this user may not know."""
        try:
            return self.ledger.exists()
        except OSError as error:
            raise StoreDamaged(
                f"the ledger {self.ledger} cannot be used: {error.strerror}", hint="run it as root"
            ) from None

    def unfinished(self) -> tuple[JournalEntry, ...]:
        """Return the changes that are under way or were interrupted, the newest first. Raises StoreDamaged."""

        def published(document: Published) -> tuple[JournalEntry, ...]:
            from vfioctl.core.published_history import published_unfinished

            return published_unfinished(document)

        none: tuple[JournalEntry, ...] = ()
        return self.ask_ledger(lambda _: self.journal.unfinished(), published, none)

    def entries(self, *, most: int = -1, since: str = "") -> tuple[JournalEntry, ...]:
        """Return at most `most` changes that began at `since` or later, the newest first; all if `most` is negative.

        Ordinary users get those that root publishes, without their plans. Raises StoreDamaged, KernelRefused."""

        def published(document: Published) -> tuple[JournalEntry, ...]:
            from vfioctl.core.published_history import published_entries

            return published_entries(document, most=most, since=since)

        none: tuple[JournalEntry, ...] = ()
        return self.ask_ledger(lambda _: self.journal.entries(most=most, since=since), published, none)

    def plan(self, draft: Draft) -> Plan:
        """Return the plan of a draft. Raises ClaimConflict if it would change what is reserved for someone else."""
        from vfioctl.core.reservations import refuse_reserved

        plan = self.registry.plan(draft)
        refuse_reserved(plan, self.known_reservations()[0], acting_for=self.reservation)
        return plan

    def plan_again(self, intent: Intent) -> Plan:
        """Plan an intent on the host as it is now. Raises what planning raises."""
        api = next(row.api for row in self.subsystems if row.name == self.registry.subsystem_of(intent))
        plan: Plan = import_object(api)(self).replan(intent)
        return plan

    def apply(self, plan: Plan, *, progress: Progress | None = None, cancel: Cancel | None = None) -> Outcome:
        """Apply the plan, or roll back and raise; see `Engine.apply` for the errors. One that another process has
        overtaken is planned again, once: if nothing is left to do, that is the result."""
        try:
            return self.engine.apply(plan, progress, cancel, acting_for=self.reservation)
        except StalePlan:
            fresh = self._met(plan.intent)
            if fresh is None:
                raise
            return self.engine.apply(fresh, progress, cancel, acting_for=self.reservation)

    def _met(self, intent: Intent) -> Plan | None:
        """Return the empty plan of an intent that the host meets already; None if it does not, or cannot be planned."""
        with suppress(VfioctlError):
            plan = self.plan_again(intent)
            return plan if plan.nothing_to_do else None
        return None
