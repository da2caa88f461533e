"""Creates vGPUs with retries, and persistent VFs and vGPUs after a boot: VFs first, then vGPUs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vfioctl.errors import BadDocument, NoCapacity, Stuck, VfioctlError

if TYPE_CHECKING:
    from vfioctl.core.change import Outcome, Plan

_PAUSE = 1.0


@dataclass(frozen=True)
class Restored:
    """The result of `VgpuApi.restore`."""

    files: tuple[str, ...]
    """The definitions, in the order of creation."""
    plans: tuple[Plan, ...]
    """In a dry run, the plans that would be carried out."""
    outcomes: tuple[Outcome, ...]
    failures: Mapping[str, VfioctlError]
    """Errors by file. The key `recover` is for a change that a reboot interrupted and that could not be recovered."""


class Restoring:
    """Creates what the files define, and retries failures until the timeout."""

    def __init__(self, plan: Callable[[str], Plan | None], apply: Callable[[Plan], Outcome] | None) -> None:
        """`plan`: plans one file, or returns None if nothing is missing. `apply`: carries out a plan; None: dry run."""
        self._plan, self._apply = plan, apply
        self.failures: dict[str, VfioctlError] = {}
        self._plans: list[Plan] = []
        self._outcomes: list[Outcome] = []

    def recover(self, recover: Callable[[], object]) -> None:
        """Recovers a change that a reboot interrupted. A failure is recorded, and does not prevent creation."""
        try:
            recover()
        except VfioctlError as error:
            self.failures["recover"] = error

    def run(self, files: tuple[str, ...], *, wait: float) -> Restored:
        """A failure does not prevent the others from being created. `wait`: seconds to retry failures."""
        until, left = time.monotonic() + wait, list(files)
        while left:
            left = [file for file in left if self._is_to_be_tried_again(file)]
            if time.monotonic() >= until:
                break
            if left:
                time.sleep(_PAUSE)
        return Restored(files, tuple(self._plans), tuple(self._outcomes), dict(self.failures))

    def _is_to_be_tried_again(self, file: str) -> bool:
        try:
            plan = self._plan(file)
            if plan is not None and not plan.nothing_to_do:
                if self._apply:
                    self._outcomes.append(self._apply(plan))
                else:
                    self._plans.append(plan)
            self.failures.pop(file, None)
        except VfioctlError as error:
            self.failures[file] = error
            return not isinstance(error, (Stuck, BadDocument))  # waiting helps neither
        return False


MOST_TRIES = 4
"""The maximum number of attempts. Each retry excludes the parents that refused."""
Make = Callable[[Sequence[str]], "Plan"]
"""Makes a plan that avoids the given parents."""


def create_somewhere(
    make: Make,
    apply: Callable[[Plan], Outcome],
    exclude: Sequence[str],
    elsewhere: Callable[[VfioctlError], None] | None,
) -> Outcome:
    """The outcome of the first plan that succeeds. `elsewhere` is called with the error before each retry.

    Raises what `make` and `apply` raise; NoCapacity after the last attempt, or when there is no other parent.
    """
    excluded = list(exclude)
    plan = make(excluded)
    for _ in range(1, MOST_TRIES):
        try:
            return apply(plan)
        except NoCapacity as full:
            excluded.append(str(full.facts.get("place", "")))
            try:
                plan = make(excluded)
            except NoCapacity:
                raise full from None
            if elsewhere:
                elsewhere(full)
    return apply(plan)
