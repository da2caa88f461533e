"""Creates vGPUs with retries on other parents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from vfioctl.errors import NoCapacity, VfioctlError

if TYPE_CHECKING:
    from vfioctl.core.change import Outcome, Plan

_MOST_TRIES = 4


def create_somewhere(
    make: Callable[..., Plan],
    apply: Callable[[Plan], Outcome],
    exclude: Sequence[str],
    elsewhere: Callable[[VfioctlError], None] | None,
) -> Outcome:
    """The outcome of the first plan that succeeds; each retry excludes the parents that refused. `make`: makes a plan
    that avoids the parents in `exclude`. `elsewhere` is called with the error before each retry. Raises what `make` and
    `apply` raise; NoCapacity after the last attempt, or when there is no other parent."""
    excluded = list(exclude)
    plan = make(exclude=excluded)
    for _ in range(1, _MOST_TRIES):
        try:
            return apply(plan)
        except NoCapacity as full:
            excluded.append(str(full.facts.get("place", "")))
            try:
                plan = make(exclude=excluded)
            except NoCapacity:
                raise full from None
            if elsewhere:
                elsewhere(full)
    return apply(plan)
