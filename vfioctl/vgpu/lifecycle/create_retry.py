"""Creates vGPUs, and retries on other parents when another process has taken one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from vfioctl.errors import NoCapacity, VfioctlError

if TYPE_CHECKING:
    from vfioctl.core.change import Outcome, Plan

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
