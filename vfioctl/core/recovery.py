"""Finishes interrupted changes, back or forward. Writes to the host only through `rollback`."""

from __future__ import annotations

import time
from collections.abc import Collection

from vfioctl.core.change import Change, JournalEntry, JournalState, Key, Outcome, Plan, Repair, Result
from vfioctl.core.events import EventKind, Progress, StepEvent, notify
from vfioctl.core.executor import untouched
from vfioctl.core.journal import Journal
from vfioctl.core.logs import log_done, log_failed
from vfioctl.core.marks import MarkKind
from vfioctl.core.reading import read_facts
from vfioctl.core.registry import Registry
from vfioctl.core.rollback import Rollback, now, stuck
from vfioctl.core.verify import is_done, verify_checks
from vfioctl.errors import Busy, Stuck, VfioctlError
from vfioctl.kernel.protocol import Kernel

_STATES = {
    Result.DONE: JournalState.DONE,
    Result.COMPLETE: JournalState.DONE,
    Result.BACK: JournalState.BACK,
    Result.REBOOTED: JournalState.REBOOTED,
}


class Recovery:
    """Recovery of the interrupted changes of one host."""

    def __init__(self, kernel: Kernel, journal: Journal, registry: Registry, rollback: Rollback) -> None:
        self._kernel, self._journal, self._registry, self._rollback = kernel, journal, registry, rollback

    def finish_all(
        self,
        *,
        forward: bool,
        progress: Progress | None,
        of_this_boot: bool = True,
        made_for: Collection[str] | None = None,
    ) -> tuple[Outcome, ...]:
        """Finish unfinished changes and return their outcomes. Raises the first Stuck after trying all of them.
        `made_for`: only those that were made for one of these."""
        outcomes, stuck_ones = [], []
        for entry in self._journal.unfinished():
            if not (of_this_boot or self._rebooted(entry)) or entry.made_for not in (made_for or [entry.made_for]):
                continue
            try:
                outcome = self._finish(entry, forward=forward, progress=progress)
            except Stuck as error:
                log_failed(entry.plan, error, prefix="recover ")
                stuck_ones.append(error)
            else:
                log_done(entry.plan, outcome.result, prefix="recover ")
                outcomes.append(outcome)
        if not stuck_ones:
            return tuple(outcomes)
        first = stuck_ones[0]
        first.restored = "; ".join(f"{outcome.plan.listed}: {outcome.result}" for outcome in outcomes)
        first.facts["others"] = [error.message for error in stuck_ones[1:]]
        raise first

    def plan_all(self, *, forward: bool) -> tuple[Repair, ...]:
        """Return what `finish_all` would do on the host as it is now."""
        return tuple(self._planned(entry, forward=forward) for entry in self._journal.unfinished())

    def _planned(self, entry: JournalEntry, *, forward: bool) -> Repair:
        try:
            self._refuse_under_way(entry)
            self._refuse_wedged(entry)
            result = self._result(entry, forward=forward)
            changes = self._changes(entry, result)
        except VfioctlError as error:
            refused = "; ".join(filter(None, (error.message, error.hint)))
            return Repair(entry=entry, result=Result.DONE if forward else Result.BACK, refused=refused)
        steps = tuple(owned.step for owned in self._registry.steps(changes))
        return Repair(entry=entry, result=result, changes=changes, steps=steps)

    def _rebooted(self, entry: JournalEntry) -> bool:
        return entry.boot_id != self._rollback.boot_id

    def _result(self, entry: JournalEntry, *, forward: bool) -> Result:
        if self._rebooted(entry):
            return Result.REBOOTED
        if is_done(self._registry, self._rollback.context(entry.plan), entry.plan):
            return Result.COMPLETE
        return Result.DONE if forward else Result.BACK

    def _changes(self, entry: JournalEntry, result: Result) -> tuple[Change, ...]:
        if result == Result.COMPLETE:
            return ()
        if result == Result.DONE:
            return self._rollback.finishing(entry.plan)
        return self._rollback.restoring(entry.plan, rebooted=result == Result.REBOOTED, spare=self._spare(entry))

    def _spare(self, entry: JournalEntry) -> frozenset[Key]:
        return untouched(self._registry, entry.plan, entry.reached) if entry.reached is not None else frozenset()

    def _finish(self, entry: JournalEntry, *, forward: bool, progress: Progress | None) -> Outcome:
        began, plan = time.monotonic(), entry.plan
        self._refuse_wedged(entry)
        try:
            result = self._result(entry, forward=forward)
            changes = self._changes(entry, result)
            left, kept = self._rollback.carry_out(changes, plan, progress), list[str]()
            if result == Result.BACK:
                kept = self._rollback.left_alone(plan, (*self._spare(entry), *(change.key for change in changes)))
                kept += self._rollback.lost(plan, len(plan.steps) if entry.reached is None else entry.reached)
            if result == Result.DONE:
                verify_checks(self._registry, self._rollback.context(plan), plan)
        except VfioctlError as error:
            why = "; then, in recovery: ".join(filter(None, (entry.why, error.message)))
            self._rollback.note(entry.id, JournalState.STUCK, why)
            self._rollback.mark_wedged(error)
            raise stuck(f"the change of {plan.listed} could not be finished: {error.message}", error) from error
        why, boot_id = "; ".join(filter(None, (entry.why, *left, *kept))), self._rollback.boot_id
        self._journal.end(entry.id, _STATES[result], boot_id=boot_id, now=now(), why=why, plan=plan)
        notify(progress, StepEvent(EventKind.CLOSED))
        if result != Result.REBOOTED:
            self._rollback.mark_dead(plan)
        self._journal.unmark(plan.subjects, boot_id=boot_id)
        outcome = outcome_of(self._kernel, self._registry, plan, result, began)
        return outcome.model_copy(update={"notes": tuple(kept)}) if kept else outcome

    def _refuse_under_way(self, entry: JournalEntry) -> None:
        """Raise Busy for a change that another process is making. Under the host's lock, no other process is."""
        if entry.under_way:
            raise Busy(f"a change of {entry.plan.listed} is under way (process {entry.caller.pid})")

    def _refuse_wedged(self, entry: JournalEntry) -> None:
        """Raise Stuck while an abandoned write is still in the kernel: reading the device would block too."""
        for mark in () if self._rebooted(entry) else self._rollback.marks().values():
            concerned = mark.kind == MarkKind.WEDGED and mark.address in entry.plan.subjects
            if concerned and self._kernel.write_ended(mark.ticket) is None:
                raise Stuck(
                    f"{mark.address} is still wedged: {mark.why}",
                    hint="the write is still under way, until its holder closes the device or a reboot; recover then",
                    next_command=f"vfioctl holders {mark.address}",
                    facts={"ticket": mark.ticket},
                )


def outcome_of(kernel: Kernel, registry: Registry, plan: Plan, result: Result, began: float) -> Outcome:
    """Return an outcome with the current facts. `began`: start time by the monotonic clock, in seconds."""
    facts = read_facts(kernel, registry, plan.facts)
    return Outcome(plan=plan, result=result, found=tuple(facts.values()), changes=(), seconds=time.monotonic() - began)
