"""Walks a plan: lock, facts unchanged?, journal, each step, probed again, equal to the goal? Otherwise back.

The only module that changes a host. It never trusts a write that returned: only what a fresh probe shows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

from vfioctl.apply.journal import Journal
from vfioctl.apply.wording import listed, said, stuck, verify_error
from vfioctl.errors import (
    BadDocument,
    KernelRefused,
    NotPermitted,
    StalePlan,
    StoreDamaged,
    Stuck,
    Unfinished,
    VerifyError,
    VfioctlError,
)
from vfioctl.interrupts import held_back, listen
from vfioctl.kernel.seam import PCI_DRIVERS, Kernel
from vfioctl.model.change import JournalEntry, JournalState, Outcome, Plan, Result, Step, StepKind
from vfioctl.plan.bind import modules_between
from vfioctl.plan.steps import Bindings, follows, steps
from vfioctl.probe.bindings import read_facts
from vfioctl.probe.inventory import read_inventory

Progress = Callable[[Step, int, int], None]
BOOT_ID = "/proc/sys/kernel/random/boot_id"


class Engine:
    """One host and its journal. `settle`: seconds a driver may take to appear after the last write."""

    def __init__(self, kernel: Kernel, journal: Journal, *, settle: float, lock_wait: float) -> None:
        self._kernel, self._journal = kernel, journal
        self._settle, self._lock_wait = settle, lock_wait

    def apply(self, plan: Plan, progress: Progress | None = None) -> Outcome:
        """Does it, or leaves the host as it was. An interrupt is heard between steps, and undoes them too.

        Raises BadDocument, NotPermitted, Busy, StalePlan, Unfinished, StoreDamaged before the first write;
        KernelRefused, HostError, VerifyError when the host was put back; Stuck when it was not.
        """
        began = time.monotonic()
        _refuse_forged(plan)
        if plan.nothing_to_do:
            self._refuse_unfinished(plan)
            self._refuse_stale(plan)
            return self._outcome(plan, Result.NOTHING, began)
        self._refuse_unwritable(plan)
        with self._kernel.exclusive(self._journal.store.lock_file, wait=self._lock_wait), held_back():
            self._refuse_unfinished(plan)  # with the lock in hand: what is open now is nobody's any more
            self._refuse_stale(plan)
            entry = self._journal.begin(plan, boot_id=self.boot_id, now=_now())
            self._carry_out(entry, plan, progress)
            return self._outcome(plan, Result.DONE, began)

    def recover(self, *, forward: bool, progress: Progress | None = None) -> tuple[Outcome, ...]:
        """Finishes what was cut short, the newest first: back to what was, or with `forward` to what was meant.

        Raises Stuck for the first that cannot be finished.
        """
        if not self._journal.unfinished():
            return ()
        if self._kernel.read_only:
            raise NotPermitted(self._kernel.read_only)
        with self._kernel.exclusive(self._journal.store.lock_file, wait=self._lock_wait), held_back():
            return tuple(
                self._finish(entry, forward=forward, progress=progress) for entry in self._journal.unfinished()
            )

    @property
    def boot_id(self) -> str:
        return self._kernel.read(BOOT_ID)

    # -- before the first write --------------------------------------------------------------------

    def _refuse_unfinished(self, plan: Plan) -> None:
        concerned = {fact.address for fact in plan.facts}
        for entry in self._journal.unfinished():
            if cut_short := [c.address for c in entry.plan.changes if c.address in concerned]:
                raise Unfinished(
                    f"an earlier change of {', '.join(cut_short)} was cut short",
                    hint="finish it first: back to what it was, or forward with --forward",
                    next_command="vfioctl recover",
                )

    def _refuse_unwritable(self, plan: Plan) -> None:
        if self._kernel.read_only:
            raise NotPermitted(self._kernel.read_only, hint="use --simulate to try changes")
        files = sorted({step.target for step in plan.steps if step.kind == StepKind.WRITE})
        present = [file for file in files if self._kernel.has(file)]
        refused = [file for file in present if not self._kernel.writable(file)]
        if refused:
            raise NotPermitted(
                f"not permitted to write {', '.join(refused)}",
                hint="run it as root; in a container, /sys must be mounted read-write",
                facts={"files": refused},
            )

    def _refuse_stale(self, plan: Plan) -> None:
        now = read_facts(self._kernel, [fact.address for fact in plan.facts])
        changed = [fact for fact in plan.facts if now.get(fact.address) != fact]
        if changed:
            raise StalePlan(
                f"{', '.join(fact.address for fact in changed)} changed after the plan was made",
                hint="make a new plan",
                facts={
                    "expected": [fact.model_dump() for fact in changed],
                    "found": [now[f.address].model_dump() if f.address in now else None for f in changed],
                },
            )

    # -- the walk ----------------------------------------------------------------------------------

    def _carry_out(self, entry: int, plan: Plan, progress: Progress | None) -> None:
        try:
            self._walk(plan.steps, progress, heed=listen)
            self._verify({change.address: change.after for change in plan.changes})
            self._verify_viable(plan)
            listen()
        except (VfioctlError, KeyboardInterrupt) as error:
            self._put_back(entry, plan, error, progress)
            raise
        self._close_done(entry, plan)

    def _close_done(self, entry: int, plan: Plan) -> None:
        try:
            self._journal.end(entry, JournalState.DONE, now=_now())
        except StoreDamaged as error:
            error.message = f"{listed(plan)} changed as planned, but the journal could not say so: {error.message}"
            error.next_command = "vfioctl recover"
            raise

    def _walk(self, todo: tuple[Step, ...], progress: Progress | None, *, heed: Callable[[], None]) -> None:
        for number, step in enumerate(todo, start=1):
            heed()
            if progress:
                progress(step, number, len(todo))
            if step.kind == StepKind.LOAD:
                self._kernel.load(step.target)
            else:
                self._kernel.write(self._spelled_file(step.target), self._spelled(step))

    def _spelled(self, step: Step) -> str:
        """A driver by the name it registered: a variant's module name has `_` where that may have `-`."""
        if not step.target.endswith("/driver_override") or step.value == "\n":
            return step.value
        return self._registered(step.value)

    def _spelled_file(self, path: str) -> str:
        home, _, attribute = path.rpartition("/")
        if not home.startswith(f"{PCI_DRIVERS}/"):
            return path
        return f"{PCI_DRIVERS}/{self._registered(home.removeprefix(f'{PCI_DRIVERS}/'))}/{attribute}"

    def _registered(self, name: str) -> str:
        spellings = (name, name.replace("_", "-"), name.replace("-", "_"))
        return next((s for s in spellings if self._kernel.has(f"{PCI_DRIVERS}/{s}")), name)

    # -- the proof ---------------------------------------------------------------------------------

    def _verify(self, goals: Bindings) -> None:
        until = time.monotonic() + self._settle
        while True:
            found = read_facts(self._kernel, goals)
            wrong = {a: goal for a, goal in goals.items() if a not in found or not found[a].binding.meets(goal)}
            if not wrong:
                return
            if time.monotonic() >= until:
                raise verify_error(wrong, found)
            time.sleep(0.05)

    def _verify_viable(self, plan: Plan) -> None:
        for group in plan.viable_groups:
            try:
                viable = self._kernel.viable(group)
            except KernelRefused as error:
                if error.symbol == "ENOENT" and self._has_cdevs():
                    continue  # a kernel with device nodes in place of group nodes has no such question
                raise
            if not viable:
                raise VerifyError(
                    f"the kernel says that IOMMU group {group} is not viable: a member still does its own DMA",
                    hint="vfioctl show names the members and their drivers",
                )

    def _has_cdevs(self) -> bool:
        return self._kernel.has("/dev/vfio/devices")

    # -- the way back ------------------------------------------------------------------------------

    def _put_back(
        self, entry: int, plan: Plan, error: VfioctlError | KeyboardInterrupt, progress: Progress | None
    ) -> None:
        """Plans from what is now to what was before, and walks it; on failure the journal stays open."""
        why = said(error)
        if isinstance(error, Stuck):
            self._note(entry, JournalState.STUCK, why)
            return
        try:
            self._go_to({change.address: change.before for change in plan.changes}, progress)
        except VfioctlError as second:
            self._note(entry, JournalState.STUCK, f"{why}; then, going back: {second.message}")
            raise stuck(f"{why}; and going back failed: {second.message}", second, error) from error
        noted = self._note(entry, JournalState.BACK, why)
        restored = f"{listed(plan)} put back as before"
        error.restored = restored if noted else f"{restored}; the journal could not say so: vfioctl recover"  # type: ignore[union-attr]

    def _note(self, entry: int, state: JournalState, why: str) -> bool:
        """Whether the journal took it. A full disk must not hide what happened to the host."""
        try:
            self._journal.end(entry, state, now=_now(), why=why)
        except StoreDamaged:
            return False
        return True

    def _go_to(self, goals: Bindings, progress: Progress | None) -> None:
        inventory = read_inventory(self._kernel)
        now = {address: fact.binding for address, fact in read_facts(self._kernel, goals).items()}
        if gone := [address for address in goals if address not in now]:
            raise Stuck(f"{', '.join(gone)} has gone from the PCI bus", hint="rescan the bus, then recover")
        self._walk(steps(now, goals, modules_between(inventory, now, goals)), progress, heed=_deaf)
        self._verify(goals)

    def _finish(self, entry: JournalEntry, *, forward: bool, progress: Progress | None) -> Outcome:
        began, plan = time.monotonic(), entry.plan
        if entry.boot_id != self.boot_id:
            self._journal.end(entry, JournalState.REBOOTED, now=_now(), why=entry.why)
            return self._outcome(plan, Result.REBOOTED, began)
        after = {change.address: change.after for change in plan.changes}
        if forward or self._is_done(plan, after):
            goals, state, result = after, JournalState.DONE, Result.DONE
        else:
            before = {change.address: change.before for change in plan.changes}
            goals, state, result = before, JournalState.BACK, Result.BACK
        try:
            self._go_to(goals, progress)
            if result == Result.DONE:
                self._verify_viable(plan)
        except VfioctlError as error:
            why = "; then, in recovery: ".join(filter(None, (entry.why, error.message)))
            self._note(entry.id, JournalState.STUCK, why)
            raise stuck(f"the change of {listed(plan)} could not be finished: {error.message}", error) from error
        self._journal.end(entry, state, now=_now(), why=entry.why)
        return self._outcome(plan, result, began)

    def _is_done(self, plan: Plan, after: Bindings) -> bool:
        """Whether only the last word in the journal was missing."""
        found = read_facts(self._kernel, after)
        if not all(a in found and found[a].binding.meets(goal) for a, goal in after.items()):
            return False
        try:
            self._verify_viable(plan)
        except (VerifyError, KernelRefused):
            return False  # a guest could not have it, so it is no success, and there must be a way back
        return True

    def _outcome(self, plan: Plan, result: Result, began: float) -> Outcome:
        found = read_facts(self._kernel, [fact.address for fact in plan.facts])
        return Outcome(plan=plan, result=result, found=tuple(found.values()), seconds=time.monotonic() - began)


def _refuse_forged(plan: Plan) -> None:
    """The id shows only that a plan is whole. Whoever wrote it, it writes what its changes take and nothing else."""
    if not follows(plan):
        raise BadDocument("the steps of the plan do not follow from its changes", hint="make a new plan")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _deaf() -> None:
    """Going back is not to be interrupted."""
