"""Rollback: restores a host to its state before a change and closes the journal entry.

Rollback is planning again with the recorded `before` as the goal, so it works from any half-done state and in another
process. Writes to the host only through the executor."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime

from vfioctl.core.action import Context
from vfioctl.core.change import Change, JournalState, Key, Plan
from vfioctl.core.events import EventKind, Progress, StepEvent, notify
from vfioctl.core.executor import Executor, untouched, written
from vfioctl.core.journal import Journal
from vfioctl.core.marks import Mark, MarkKind
from vfioctl.core.reading import read_changes
from vfioctl.core.registry import Registry
from vfioctl.core.resource import Found
from vfioctl.core.verify import dead, verify_changes
from vfioctl.errors import StoreDamaged, Stuck, VfioctlError
from vfioctl.kernel.protocol import Kernel

BOOT_ID = "/proc/sys/kernel/random/boot_id"
NONE: frozenset[Key] = frozenset()


class Rollback:
    """Rollback on one host. `settle`: seconds that a driver may take to appear after the last write."""

    def __init__(self, kernel: Kernel, journal: Journal, registry: Registry, *, settle: float) -> None:
        self._kernel, self._journal, self._registry, self._settle = kernel, journal, registry, settle

    @property
    def boot_id(self) -> str:
        return self._kernel.read(BOOT_ID)

    def marks(self) -> Mapping[str, Mark]:
        """Return the wedged and dead devices of this boot, by address. Raises StoreDamaged."""
        return self._journal.marks(boot_id=self.boot_id)

    def context(self, plan: Plan) -> Context:
        """Return the context for the plan's steps, or for the steps of its rollback."""
        wedged: list[str] = []
        with suppress(StoreDamaged):  # a damaged ledger must not keep the host from being put back
            wedged = [mark.address for mark in self.marks().values() if mark.kind == MarkKind.WEDGED]
        return Context(self._kernel, plan.intent, self._settle, wedged)

    def mark_dead(self, plan: Plan) -> Mapping[str, str]:
        """Mark the plan's devices that are dead; return each with the evidence."""
        gone = dead(self._registry, self.context(plan), plan)
        if gone:
            self._mark(Mark(address=address, kind=MarkKind.DEAD, since=now(), why=why) for address, why in gone.items())
        return gone

    def put_back(
        self,
        entry: int,
        plan: Plan,
        error: VfioctlError | KeyboardInterrupt,
        progress: Progress | None,
        executor: Executor,
    ) -> None:
        """Roll back what `executor` did, and close the journal entry. If that fails, mark it and raise Stuck."""
        why = error.message if isinstance(error, VfioctlError) else "interrupted"
        if isinstance(error, Stuck):
            self.note(entry, JournalState.STUCK, why)
            self.mark_wedged(error)
            return
        if gone := self.mark_dead(plan):
            why = f"{why}; {dead_words(gone)}"
            if isinstance(error, VfioctlError):
                error.message = why
        failed = executor.under_way or 0
        step = executor.context.steps[failed - 1] if failed else None
        notify(progress, StepEvent(EventKind.ROLLBACK, step, failed, len(executor.context.steps), error=error))
        try:
            spare = untouched(self._registry, plan, executor.reached)
            begun = written(self._registry, plan, executor.reached)
            changes = self.restoring(plan, spare=spare, written=begun)
            left = self.carry_out(changes, plan, progress)
            kept = self.left_alone(plan, (*spare, *(change.key for change in changes)))
            kept += self.lost(plan, executor.reached)
        except VfioctlError as second:
            self.note(entry, JournalState.STUCK, f"{why}; then, rolling back: {second.message}")
            self.mark_wedged(second)
            raise stuck(f"{why}; and the rollback failed: {second.message}", second, error) from error
        noted = self.note(entry, JournalState.BACK, "; ".join((why, *kept)))
        back = [f"{plan.listed} put back as before"] if changes or not kept else []
        restored = "; ".join([*back, *(f"but {text}" for text in left), *kept])
        error.restored = restored if noted else f"{restored}; the journal could not be updated: vfioctl recover"  # type: ignore[union-attr]
        notify(progress if noted else None, StepEvent(EventKind.CLOSED, error=error))

    def note(self, entry: int, state: JournalState, why: str) -> bool:
        """Write the entry's state; return whether that succeeded. A full disk must not hide the original error."""
        try:
            self._journal.end(entry, state, boot_id=self.boot_id, now=now(), why=why)
        except StoreDamaged:
            return False
        return True

    def mark_wedged(self, error: VfioctlError) -> None:
        address, ticket = error.facts.get("address"), error.facts.get("ticket")
        if isinstance(error, Stuck) and address and ticket:
            why = error.message
            self._mark([Mark(address=str(address), kind=MarkKind.WEDGED, since=now(), why=why, ticket=str(ticket))])

    def _mark(self, marks: Iterable[Mark]) -> None:
        with suppress(StoreDamaged):
            self._journal.mark(marks, boot_id=self.boot_id)

    def finishing(self, plan: Plan) -> tuple[Change, ...]:
        """Return the changes that complete the plan."""
        values = self._found(plan.changes)
        return self._with_needs(_each(self._registry.resource(c).finish(c, values) for c in plan.changes))

    def restoring(
        self, plan: Plan, *, rebooted: bool = False, spare: Collection[Key] = NONE, written: frozenset[Key] = NONE
    ) -> tuple[Change, ...]:
        """Return the changes that restore the state before the plan."""
        resource = self._registry.resource
        mine = [c for c in plan.changes if c.key not in spare and (not rebooted or resource(c).survives_reboot)]
        values = self._found(mine, written)
        return self._with_needs(_each(resource(change).restore(change, values) for change in mine))

    def left_alone(self, plan: Plan, known: Collection[Key]) -> list[str]:
        """Return messages about resources that are another's now, and stay. `known`: those restored, or not touched."""
        left = [c for c in plan.changes if c.key not in known and self._registry.resource(c).shared_place]
        values = read_changes(self._kernel, self._registry, left)
        wrong = [change.to(change.before, found=now) for change in left if (now := values[change.key]) is not None]
        return [
            f"{description.name} was not put back, and is {description.before}"
            for change in wrong
            if not self._registry.resource(change).matches(change, change.before)
            for description in [self._registry.resource(change).describe(change)]
        ]

    def lost(self, plan: Plan, reached: int) -> list[str]:
        """Return messages about what cannot be put back. `reached`: the last step that was begun."""
        begun = written(self._registry, plan, reached)
        return [text for c in plan.changes if c.key in begun and (text := self._registry.resource(c).lost(c))]

    def _found(self, changes: Iterable[Change], written: frozenset[Key] = NONE) -> Found:
        by_key = {change.key: change for change in changes}
        return Found(read_changes(self._kernel, self._registry, by_key.values()), written, by_key)

    def _with_needs(self, changes: Iterable[Change]) -> tuple[Change, ...]:
        goals = tuple(changes)
        needed = (need for change in goals for need in self._registry.resource(change).needs(self._kernel, change))
        first = {need.key: need for need in needed}  # a change that several goals need is made once
        return (*first.values(), *(change for change in goals if change.key not in first))

    def carry_out(self, changes: Sequence[Change], plan: Plan, progress: Progress | None) -> list[str]:
        """Make and verify these changes, without interrupts; return messages about optional ones that failed."""
        context = self.context(plan)
        steps = self._registry.steps(changes)
        executor = Executor(self._registry, context)
        left = executor.run(steps, progress, check=lambda: None)
        notify(progress, StepEvent(EventKind.VERIFY, timeout=context.settle))
        return [*executor.unreleased, *left, *verify_changes(self._registry, context, changes).left]


def stuck(message: str, cause: VfioctlError, first: BaseException | None = None) -> Stuck:
    """What could not be finished, with what the kernel said of it and of what came before."""
    facts = {**getattr(first, "facts", {}), "cause": cause.facts}
    error = Stuck(message, hint=cause.hint, next_command="vfioctl recover", facts=facts)
    error.kernel_said = cause.kernel_said or getattr(first, "kernel_said", "")
    return error


def dead_words(gone: Mapping[str, str]) -> str:
    """`0000:01:00.0 is dead: ...`"""
    return f"{', '.join(gone)} is dead: {next(iter(gone.values()))}"


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _each(changes: Iterable[Change | None]) -> Iterator[Change]:
    return (change for change in changes if change is not None)
