"""Restores what is persistent after a boot: plans and applies each file, with retries. Knows no kind of file."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vfioctl.core.events import Cancel, check_stop
from vfioctl.errors import BadDocument, Cancelled, DeviceMissing, Stuck, VfioctlError

if TYPE_CHECKING:
    from vfioctl.core.change import Outcome, Plan
    from vfioctl.core.engine import Engine

_PAUSE = 1.0


@dataclass(frozen=True)
class Restored:
    """What was restored."""

    files: tuple[str, ...]
    """The definitions, in the order of creation."""
    plans: tuple[Plan, ...]
    """In a dry run, the plans that would be carried out."""
    outcomes: tuple[Outcome, ...]
    failures: Mapping[str, VfioctlError]
    """Errors by file. The key `recover` is for a change that a reboot interrupted and that could not be recovered."""


def recover_interrupted(engine: Engine) -> Mapping[str, VfioctlError]:
    """Recovers what the end of an earlier boot interrupted. Returns the error under `recover`, if it failed."""
    try:
        engine.recover(forward=False, of_this_boot=False)
    except VfioctlError as error:
        return {"recover": error}
    return {}


def restore(
    files: tuple[str, ...],
    make: Callable[[str], Plan | None],
    apply: Callable[[Plan], Outcome] | None,
    earlier: Mapping[str, VfioctlError],
    *,
    wait: float,
    cancel: Cancel | None = None,
) -> Restored:
    """Creates what the files define, each even if others fail. `make`: plans one file; None if nothing is missing.
    `apply`: carries out a plan; None: dry run. `earlier`: failures before this. `wait`: seconds to retry failures.
    `cancel`: ends it with Cancelled; what was created before stays."""
    plans: list[Plan] = []
    outcomes: list[Outcome] = []
    failures = dict(earlier)

    def is_to_be_tried_again(file: str) -> bool:
        check_stop(cancel)
        try:
            plan = make(file)
            if plan is not None and not plan.nothing_to_do:
                if apply:
                    outcomes.append(apply(plan))
                else:
                    plans.append(plan)
            failures.pop(file, None)
        except Cancelled:
            raise
        except VfioctlError as error:
            failures[file] = error
            return not isinstance(error, (Stuck, BadDocument, DeviceMissing))  # waiting helps none of them
        return False

    until, left = time.monotonic() + wait, list(files)
    while left:
        left = [file for file in left if is_to_be_tried_again(file)]
        if time.monotonic() >= until:
            break
        if left:
            time.sleep(_PAUSE)
    return Restored(files, tuple(plans), tuple(outcomes), failures)
