"""Finishes interrupted changes, back or forward. Writes to the host only through `rollback`."""

from __future__ import annotations

import time

from vfioctl.core.action import Progress
from vfioctl.core.change import JournalEntry, JournalState, Outcome, Plan, Result
from vfioctl.core.executor import untouched
from vfioctl.core.journal import Journal
from vfioctl.core.logs import log_done, log_failed
from vfioctl.core.marks import MarkKind
from vfioctl.core.messages import listed, stuck
from vfioctl.core.reading import read_facts
from vfioctl.core.registry import Registry
from vfioctl.core.rollback import Rollback, now
from vfioctl.core.verify import is_done, verify_checks
from vfioctl.errors import Stuck, VfioctlError
from vfioctl.kernel.protocol import Kernel


class Recovery:
    """Recovery of the interrupted changes of one host."""

    def __init__(self, kernel: Kernel, journal: Journal, registry: Registry, rollback: Rollback) -> None:
        self._kernel, self._journal, self._registry, self._rollback = kernel, journal, registry, rollback

    def finish_all(self, *, forward: bool, progress: Progress | None, of_this_boot: bool = True) -> tuple[Outcome, ...]:
        """Finish all unfinished changes and return their outcomes. Raises the first Stuck after trying all of them."""
        outcomes, stuck_ones = [], []
        for entry in self._journal.unfinished():
            if entry.boot_id == self._rollback.boot_id and not of_this_boot:
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
        first.restored = "; ".join(f"{listed(outcome.plan)}: {outcome.result}" for outcome in outcomes)
        first.facts["others"] = [error.message for error in stuck_ones[1:]]
        raise first

    def _finish(self, entry: JournalEntry, *, forward: bool, progress: Progress | None) -> Outcome:
        began, plan = time.monotonic(), entry.plan
        rebooted = entry.boot_id != self._rollback.boot_id
        if not rebooted:
            self._refuse_wedged(plan)
        try:
            state, result, left = self._go(entry, rebooted=rebooted, forward=forward, progress=progress)
        except VfioctlError as error:
            why = "; then, in recovery: ".join(filter(None, (entry.why, error.message)))
            self._rollback.note(entry.id, JournalState.STUCK, why)
            self._rollback.mark_wedged(error)
            raise stuck(f"the change of {listed(plan)} could not be finished: {error.message}", error) from error
        self._journal.end(entry, state, now=now(), why="; ".join(filter(None, (entry.why, *left))), plan=plan)
        if not rebooted:
            self._rollback.mark_dead(plan)
        self._journal.unmark(plan.subjects, boot_id=self._rollback.boot_id)
        return outcome_of(self._kernel, self._registry, plan, result, began)

    def _go(
        self, entry: JournalEntry, *, rebooted: bool, forward: bool, progress: Progress | None
    ) -> tuple[JournalState, Result, list[str]]:
        plan = entry.plan
        spare = untouched(self._registry, plan, entry.reached) if entry.reached is not None else frozenset()
        if rebooted:
            left = self._rollback.go_back(plan, progress, rebooted=True, spare=spare)
            return JournalState.REBOOTED, Result.REBOOTED, left
        context = self._rollback.context(plan)
        if forward or is_done(self._registry, context, plan):
            left = self._rollback.go_forward(plan, progress)
            verify_checks(self._registry, context, plan)
            return JournalState.DONE, Result.DONE, left
        return JournalState.BACK, Result.BACK, self._rollback.go_back(plan, progress, spare=spare)

    def _refuse_wedged(self, plan: Plan) -> None:
        """Raise Stuck while an abandoned write is still in the kernel: reading the device would block too."""
        for mark in self._rollback.marks().values():
            concerned = mark.kind == MarkKind.WEDGED and mark.address in plan.subjects
            if concerned and self._kernel.write_ended(mark.ticket) is None:
                raise Stuck(
                    f"{mark.address} is still wedged: {mark.why}",
                    hint="the write is still under way; it ends when its holder closes the device, or at a reboot",
                    next_command=f"vfioctl holders {mark.address}",
                    facts={"ticket": mark.ticket},
                )


def outcome_of(kernel: Kernel, registry: Registry, plan: Plan, result: Result, began: float) -> Outcome:
    """Return an outcome with the current facts. `began`: start time by the monotonic clock, in seconds."""
    found = read_facts(kernel, registry, plan.facts)
    return Outcome(plan=plan, result=result, found=tuple(found.values()), changes=(), seconds=time.monotonic() - began)
