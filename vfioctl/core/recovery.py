"""Finishes changes that were cut short: back to what was, or forward to what was meant. Goes by `way_back`."""

from __future__ import annotations

import time

from vfioctl.core.change import JournalEntry, JournalState, Outcome, Plan, Result
from vfioctl.core.executor import Progress
from vfioctl.core.journal import Journal
from vfioctl.core.messages import listed, stuck
from vfioctl.core.rollback import Rollback, after, before, now
from vfioctl.core.verify import verify_settings, verify_viable
from vfioctl.errors import KernelRefused, Stuck, VerifyError, VfioctlError
from vfioctl.inventory.model.functions import MarkKind
from vfioctl.inventory.probe.facts import read_facts
from vfioctl.kernel.protocol import Kernel
from vfioctl.vgpu.plan.steps import untouched


class Recovery:
    """Of one host and its journal."""

    def __init__(self, kernel: Kernel, journal: Journal, way: Rollback) -> None:
        self._kernel, self._journal, self._way = kernel, journal, way

    def finish_all(self, *, forward: bool, progress: Progress | None, of_this_boot: bool = True) -> tuple[Outcome, ...]:
        """One that is stuck keeps no other from being finished."""
        outcomes, stuck_ones = [], []
        for entry in self._journal.unfinished():
            if entry.boot_id == self._way.boot_id and not of_this_boot:
                continue
            try:
                outcomes.append(self._finish(entry, forward=forward, progress=progress))
            except Stuck as error:
                stuck_ones.append(error)
        if not stuck_ones:
            return tuple(outcomes)
        first = stuck_ones[0]
        first.restored = "; ".join(f"{listed(outcome.plan)}: {outcome.result}" for outcome in outcomes)
        first.facts["others"] = [error.message for error in stuck_ones[1:]]
        raise first

    def _finish(self, entry: JournalEntry, *, forward: bool, progress: Progress | None) -> Outcome:
        began, plan = time.monotonic(), entry.plan
        rebooted = entry.boot_id != self._way.boot_id
        if not rebooted:
            self._refuse_wedged(plan)
        done = not rebooted and (forward or self._is_done(plan))
        goals, state, result = before(plan), JournalState.BACK, Result.BACK
        if rebooted:
            goals, state, result = {}, JournalState.REBOOTED, Result.REBOOTED
        elif done:
            goals, state, result = after(plan), JournalState.DONE, Result.DONE
        try:
            reached = None if forward else self._journal.reached(entry.id)
            spare = untouched(plan, reached) if reached is not None else ()
            left = self._way.go_to(plan, goals, progress, forward=done, rebooted=rebooted, spare=spare)
            if done:
                verify_viable(self._kernel, plan.viable_groups)
        except VfioctlError as error:
            why = "; then, in recovery: ".join(filter(None, (entry.why, error.message)))
            self._way.note(entry.id, JournalState.STUCK, why)
            self._way.mark_wedged(error)
            raise stuck(f"the change of {listed(plan)} could not be finished: {error.message}", error) from error
        self._journal.end(entry, state, now=now(), why="; ".join(filter(None, (entry.why, *left))))
        if not rebooted:
            self._way.mark_dead(plan)
        self._journal.unmark(plan.subjects, boot_id=self._way.boot_id)
        return outcome_of(self._kernel, plan, result, began)

    def _refuse_wedged(self, plan: Plan) -> None:
        """While a write that was given up is still in the kernel, reading the device would block too."""
        for mark in self._way.marks().values():
            concerned = mark.kind == MarkKind.WEDGED and mark.address in plan.subjects
            if concerned and self._kernel.write_ended(mark.ticket) is None:
                raise Stuck(
                    f"{mark.address} is still wedged: {mark.why}",
                    hint="the write is still under way; it ends when what holds the device lets go, or at a reboot",
                    next_command=f"vfioctl holders {mark.address}",
                    facts={"ticket": mark.ticket},
                )

    def _is_done(self, plan: Plan) -> bool:
        """Whether only the last word in the journal was missing."""
        if plan.reset:
            return False  # whether it was reset, no fact tells
        if plan.intent.vgpu_request is not None:
            return self._has_changed(plan)
        goals = after(plan)
        found = read_facts(self._kernel, goals)
        if not all(a in found and found[a].binding.meets(goal) for a, goal in goals.items()):
            return False
        try:
            verify_viable(self._kernel, plan.viable_groups)
        except (VerifyError, KernelRefused):
            return False  # a guest could not have it, so it is no success, and there must be a way back
        return True

    def _has_changed(self, plan: Plan) -> bool:
        try:
            return not verify_settings(self._kernel, plan.settings, {})
        except VerifyError:
            return False


def outcome_of(kernel: Kernel, plan: Plan, result: Result, began: float) -> Outcome:
    """With the bindings as they are now; `began` by the monotonic clock."""
    found = read_facts(kernel, [fact.address for fact in plan.facts])
    return Outcome(plan=plan, result=result, found=tuple(found.values()), seconds=time.monotonic() - began)
