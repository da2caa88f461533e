"""Takes the steps of a plan in order, until one fails: alone changes a host. May not verify or roll back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from vfioctl.core.action import Context
from vfioctl.core.change import Key, Phase, Plan
from vfioctl.core.events import EventKind, Progress, StepEvent, notify
from vfioctl.core.registry import Owned, Registry
from vfioctl.errors import KernelRefused, Stuck, VfioctlError


class Executor:
    """Runs the steps of one plan or one rollback."""

    def __init__(self, registry: Registry, context: Context) -> None:
        self._registry, self.context = registry, context
        self.reached = 0
        """Number of steps that were taken, or begun and not refused by the kernel."""
        self.under_way: int | None = None
        """The step under way, from 1; None before the first, between two steps and after the last."""
        self.refused: Owned | None = None
        """The step that the kernel refused, if that ended the run."""
        self.unreleased: list[str] = []
        """Messages of optional steps that failed to make a device's user release it: the checks that follow decide."""

    def run(
        self,
        steps: Sequence[Owned],
        progress: Progress | None,
        *,
        check: Callable[[], None],
        verify: Callable[[], None] = lambda: None,
    ) -> list[str]:
        """Take the steps in order and return the messages of optional steps (`may_fail`) that failed after the checks.
        `check`: called before each step; may raise to end the run. `verify`: called once, before the first step that
        persists something, or after the last step; may raise.

        Raises VfioctlError for the first other step that fails; a Stuck names the step's device in its facts."""
        self.context.steps = [owned.step for owned in steps]
        failures: list[str] = []
        verified = False
        for number, owned in enumerate(steps, start=1):
            check()
            if owned.step.phase == Phase.PERSIST and not verified:
                verify()
                verified = True
            action = self._registry.action(owned.step)
            event = StepEvent(EventKind.BEGIN, owned.step, number, len(steps))
            notify(progress, event._replace(timeout=action.timeout(self.context, owned.step)))
            self.reached = self.under_way = number
            end = event._replace(kind=EventKind.END)
            try:
                action.run(self.context, owned.step)
            except VfioctlError as error:
                if not self._is_done_anyway(owned, error):
                    end = event._replace(kind=EventKind.FAILED, error=error)
                    self._note_failure(owned, error, number)
                    if isinstance(error, Stuck) or not owned.step.may_fail:
                        with suppress(KeyboardInterrupt):  # the change ends anyway, and a Stuck must stay one
                            notify(progress, end)
                        raise
                    text = f"{error.message} ({error.kernel_said})" if error.kernel_said else error.message
                    (self.unreleased if owned.step.phase == Phase.RELEASE else failures).append(text)
            self.under_way = None
            notify(progress, end)
        if not verified:
            verify()
        return failures

    def _is_done_anyway(self, owned: Owned, error: VfioctlError) -> bool:
        if not isinstance(error, KernelRefused):
            return False
        return self._registry.resource(owned.change).is_done_anyway(self.context.kernel, owned.change, error)

    def _note_failure(self, owned: Owned, error: VfioctlError, number: int) -> None:
        if isinstance(error, Stuck):
            self._explain(error, owned)
        elif isinstance(error, KernelRefused):
            self.reached = number - 1
            self.refused = None if owned.step.may_fail else owned

    def _explain(self, error: Stuck, owned: Owned) -> None:
        """Add the current holders of the device, which must release it."""
        if not owned.step.subject:
            return
        error.facts["address"] = owned.step.subject
        for parts in self._registry.parts.values():
            if parts.explain_stuck:
                parts.explain_stuck(self.context, error, owned.step.subject)


def untouched(registry: Registry, plan: Plan, reached: int) -> frozenset[Key]:
    """Return the resources to be created or removed of which no step was begun: the plan has not touched them."""
    owned = registry.steps(plan.changes)
    mine = [(number, own) for number, own in enumerate(owned, start=1) if own.step.phase != Phase.CHECK]
    begun = {own.change.key for number, own in mine if number <= reached}
    return frozenset(
        own.change.key for _, own in mine if registry.resource(own.change).created and own.change.key not in begun
    )


def written(registry: Registry, plan: Plan, reached: int) -> frozenset[Key]:
    """Return the resources whose last step was begun."""
    last = {own.change.key: number for number, own in enumerate(registry.steps(plan.changes), start=1)}
    return frozenset(key for key, number in last.items() if number <= reached)
