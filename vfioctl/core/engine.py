"""Applies plans: lock, preconditions, journal, steps, verify, rollback on failure. Recovers interrupted changes.

Writes to the host only through the executor, and trusts only what `verify` reads back. Logs every change that was
made, rolled back or refused (logger `vfioctl.changes`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from vfioctl.core.action import Context
from vfioctl.core.caller import this_process
from vfioctl.core.change import Change, JournalState, Key, Outcome, Phase, Plan, Repair, Result
from vfioctl.core.events import Cancel, EventKind, Progress, StepEvent, check_stop, notify
from vfioctl.core.executor import Executor
from vfioctl.core.journal import Journal
from vfioctl.core.logs import log_done, log_failed
from vfioctl.core.permission import refuse_read_only
from vfioctl.core.reading import read_facts
from vfioctl.core.recovery import Recovery, outcome_of
from vfioctl.core.registry import Registry
from vfioctl.core.rollback import Rollback, dead_words, now
from vfioctl.core.verify import (
    refuse_forged,
    refuse_stale,
    refuse_unfinished,
    refuse_unwritable,
    verify_changes,
    verify_checks,
)
from vfioctl.errors import DeviceDead, KernelRefused, StoreDamaged, VerifyError, VfioctlError
from vfioctl.kernel.protocol import Kernel
from vfioctl.signals import deferred

Check = Callable[[], None]
"""Called where a change can be stopped; raises to stop it."""


class Engine:
    """The engine of one host. `settle`: seconds that a driver may take to appear after the last write."""

    def __init__(
        self, kernel: Kernel, journal: Journal, registry: Registry, *, settle: float, lock_wait: float
    ) -> None:
        self._kernel, self._journal, self._registry = kernel, journal, registry
        self._lock_wait = lock_wait
        self._rollback = Rollback(kernel, journal, registry, settle=settle)

    @property
    def boot_id(self) -> str:
        return self._rollback.boot_id

    def apply(
        self, plan: Plan, progress: Progress | None = None, cancel: Cancel | None = None, *, acting_for: str = ""
    ) -> Outcome:
        """Apply the plan, or roll back and raise. An interrupt and `cancel` end it between two steps, and it is rolled
        back as well; a step that hangs is given up only when its time is over.

        `acting_for`: the reservation that the change is made for.

        Raises BadDocument, NotPermitted, Busy, StalePlan, Unfinished, ClaimConflict, StoreDamaged before the first
        write; Cancelled then or, as DeviceInUse, KernelRefused, NoCapacity, HostError, VerifyError, after a rollback;
        Stuck if that failed.
        VerifyError or DeviceDead also report a completed change that left a setting unrestored or a device dead."""
        try:
            outcome = self._apply(plan, progress, partial(check_stop, cancel), acting_for)
        except (VfioctlError, KeyboardInterrupt) as error:
            log_failed(plan, error)
            raise
        log_done(plan, outcome.result)
        return outcome

    def _apply(self, plan: Plan, progress: Progress | None, check: Check, acting_for: str) -> Outcome:
        began = time.monotonic()
        refuse_forged(self._registry, plan)
        if plan.nothing_to_do:
            self._refuse_outdated(plan)
            return outcome_of(self._kernel, self._registry, plan, Result.NOTHING, began)
        refuse_unwritable(plan, self._kernel)
        store = self._journal.store
        with self._locked(progress, check), deferred(), store.one_connection():
            # under the lock, an open journal entry is unfinished: no other process is working on it
            self._refuse_outdated(plan)
            context = self._rollback.context(plan)
            check()
            entry = self._journal.begin(
                plan, boot_id=self.boot_id, now=now(), caller=this_process(), acting_for=acting_for
            )
            outcome = self._carry_out(entry, plan, context, progress, check)
            return outcome.model_copy(update={"seconds": time.monotonic() - began})

    def _locked(self, progress: Progress | None, check: Check | None = None) -> AbstractContextManager[None]:
        def waiting() -> None:
            notify(progress, StepEvent(EventKind.LOCK, timeout=self._lock_wait))

        return self._kernel.exclusive(self._journal.store.lock_file, wait=self._lock_wait, waiting=waiting, check=check)

    def _refuse_outdated(self, plan: Plan) -> None:
        refuse_unfinished(self._registry, plan, self._journal, self._kernel)
        refuse_stale(self._registry, plan, self._kernel)

    @property
    def _recovery(self) -> Recovery:
        return Recovery(self._kernel, self._journal, self._registry, self._rollback)

    def plan_recovery(self, *, forward: bool) -> tuple[Repair, ...]:
        """Return what `recover` would do now. Raises StoreDamaged."""
        return self._recovery.plan_all(forward=forward)

    def recover(
        self,
        *,
        forward: bool,
        progress: Progress | None = None,
        of_this_boot: bool = True,
        made_for: Collection[str] | None = None,
    ) -> tuple[Outcome, ...]:
        """Finish interrupted changes, the newest first: roll them back, or with `forward` complete them.

        Without `of_this_boot`, only those that a reboot interrupted. `made_for`: only those of these reservations.

        Raises NotPermitted, Busy, and Stuck for the first change that could not be finished, after trying all."""
        if not self._journal.unfinished():
            return ()
        refuse_read_only(self._kernel)
        with self._locked(progress), deferred():
            return self._recovery.finish_all(
                forward=forward, progress=progress, of_this_boot=of_this_boot, made_for=made_for
            )

    def _carry_out(self, entry: int, plan: Plan, context: Context, progress: Progress | None, check: Check) -> Outcome:
        executor, steps = Executor(self._registry, context), self._registry.steps(plan.changes)
        persisted = {owned.change.key for owned in steps if owned.step.phase == Phase.PERSIST}
        found: dict[Key, str | None] = {}
        left: list[str] = []
        report: dict[str, Any] = {}

        def verify(changes: Iterable[Change]) -> None:
            verified = verify_changes(self._registry, context, changes, check)
            found.update(verified.found)
            left.extend(verified.left)

        def verify_before_persisting() -> None:
            check()
            notify(progress, StepEvent(EventKind.VERIFY, timeout=context.settle))
            verify(change for change in plan.changes if change.key not in persisted)
            report.update(verify_checks(self._registry, context, plan))

        try:
            noting = self._noting(entry, plan, progress)
            left += executor.run(steps, noting, check=check, verify=verify_before_persisting)
            verify(change for change in plan.changes if change.key in persisted)
            facts = read_facts(self._kernel, self._registry, plan.facts)
            check()
        except (VfioctlError, KeyboardInterrupt) as error:
            self._rollback.put_back(entry, plan, error, progress, executor)
            if isinstance(error, VerifyError):
                error.kernel_said = error.kernel_said or context.said
            if isinstance(error, VfioctlError):
                error.kernel_said = error.kernel_said or "; ".join(executor.unreleased)
            if meant := self._explained(executor, error):
                raise meant from error
            raise
        self._close_done(entry, plan, [*executor.unreleased, *left])
        notify(progress, StepEvent(EventKind.CLOSED))
        self._report_leftovers(plan, left)
        return Outcome(
            plan=plan,
            result=Result.DONE,
            found=tuple(facts.values()),
            changes=_as_found(plan, found),
            report=report,
            notes=tuple(executor.unreleased),
            data=dict(context.data),
        )

    def _noting(self, entry: int, plan: Plan, progress: Progress | None) -> Progress | None:
        """Record each begun step in the journal if a foreign resource could take the place of one of the plan's."""
        if not any(self._registry.resource(change).shared_place for change in plan.changes):
            return progress

        def noting(event: StepEvent) -> None:
            if event.kind == EventKind.BEGIN:
                self._journal.reach(entry, event.number)
            if progress:
                progress(event)

        return noting

    def _explained(self, executor: Executor, error: BaseException) -> VfioctlError | None:
        if not isinstance(error, KernelRefused) or executor.refused is None:
            return None
        change = executor.refused.change
        meant = self._registry.resource(change).explain(executor.context, change, error)
        if meant:
            meant.facts |= error.facts
            meant.kernel_said, meant.restored = error.kernel_said, error.restored
        return meant

    def _close_done(self, entry: int, plan: Plan, left: list[str]) -> None:
        try:
            self._journal.end(entry, JournalState.DONE, boot_id=self.boot_id, now=now(), why="; ".join(left), plan=plan)
        except StoreDamaged as error:
            error.message = f"{plan.listed} changed as planned, but the journal could not be updated: {error.message}"
            error.next_command = "vfioctl recover"
            raise

    def _report_leftovers(self, plan: Plan, left: list[str]) -> None:
        """Raise for dead devices or unrestored settings after a completed change, which is not rolled back."""
        if gone := self._rollback.mark_dead(plan):
            raise DeviceDead(
                f"{plan.listed} {plan.intent.done}, but {dead_words(gone)}",
                hint="a reboot, or power off and on, may bring it back; it is marked, and kept from guests until then",
            )
        if left:
            raise VerifyError(
                f"{plan.listed} {plan.intent.done}, but not everything was restored: {'; '.join(left)}",
                hint="restore it manually",
            )


def _as_found(plan: Plan, found: Mapping[Key, str | None]) -> tuple[Change, ...]:
    values = ((change, found[change.key]) for change in plan.changes)
    return tuple(c if now is None else c.model_copy(update={"after": now}) for c, now in values)
