"""Verifies a plan: current before its first write, carried out after its last. May not write, nor trust a write."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from vfioctl.core.action import Context
from vfioctl.core.change import Change, Key, Plan
from vfioctl.core.journal import Journal, under_way_error, unfinished_error
from vfioctl.core.permission import refuse_read_only, refuse_unwritable_files
from vfioctl.core.reading import read_changes, read_facts
from vfioctl.core.registry import Registry
from vfioctl.errors import BadDocument, KernelRefused, StalePlan, VerifyError
from vfioctl.kernel.protocol import Kernel


def refuse_forged(registry: Registry, plan: Plan) -> None:
    """Raise BadDocument unless the steps follow from the changes. The id only detects damage, not forgery."""
    if registry.is_forged(plan):
        raise BadDocument("the steps of the plan do not follow from its changes", hint="make a new plan")


def refuse_unfinished(registry: Registry, plan: Plan, journal: Journal, kernel: Kernel) -> None:
    """Raise Unfinished if an earlier change of one of the plan's devices, or of a related one, was interrupted.

    Raises Busy if another process is still making it."""
    unfinished = journal.unfinished()
    if not unfinished:
        return
    concerned = {*(fact.subject for fact in plan.facts), *plan.subjects}
    for fact in plan.facts:
        concerned |= set(registry.source(fact.kind).relatives(kernel, fact))
    for entry in unfinished:
        if cut_short := [subject for subject in entry.plan.subjects if subject in concerned]:
            if entry.under_way and entry.caller.pid != os.getpid():  # the caller does not hold the host's lock
                raise under_way_error(cut_short, entry.caller.pid)
            raise unfinished_error(cut_short)


def refuse_unwritable(plan: Plan, kernel: Kernel) -> None:
    """Raise NotPermitted with the names of the files that may not be written."""
    refuse_read_only(kernel)
    files = {step.target for step in plan.steps if step.target.startswith(("/sys/", "/proc/"))}
    refuse_unwritable_files(kernel, sorted(files))


def refuse_stale(registry: Registry, plan: Plan, kernel: Kernel) -> None:
    """Raise StalePlan if a fact that the plan relies on, or a value that it starts from, has changed."""
    fixed = [change for change in plan.changes if registry.resource(change).fixed_start]
    values = read_changes(kernel, registry, fixed)
    changed = [change.subject for change in fixed if values[change.key] != change.before]
    now = read_facts(kernel, registry, plan.facts)
    pairs = [(fact, now.get((fact.kind, fact.subject))) for fact in plan.facts]
    broken = [(fact, found) for fact, found in pairs if not registry.source(fact.kind).holds(fact, found)]
    changed += [fact.subject for fact, _ in broken]
    if changed:
        raise StalePlan(
            f"{', '.join(dict.fromkeys(changed))} changed after the plan was made",
            hint="make a new plan",
            facts={
                "expected": [fact.model_dump() for fact, _ in broken],
                "found": [found and found.model_dump() for _, found in broken],
            },
        )


_PAUSE = 0.05


class Verified(NamedTuple):
    """The values found by resource, and messages about optional changes (`may_fail`) without their goal."""

    found: Mapping[Key, str | None]
    left: list[str]


def verify_changes(
    registry: Registry, context: Context, changes: Iterable[Change], check: Callable[[], None] = lambda: None
) -> Verified:
    """Read every resource again. Raises VerifyError if one lacks its goal after `settle` seconds; Stuck.
    `check`: called between two looks; may raise to end it."""
    changes = tuple(changes)
    until = time.monotonic() + context.settle
    while True:
        values = read_changes(context.kernel, registry, changes)
        wrong = [change for change in changes if not registry.resource(change).matches(change, values[change.key])]
        firm = [change for change in wrong if not change.may_fail]
        if not firm:
            return Verified(values, [_mismatch(registry, change, values[change.key]) for change in wrong])
        if time.monotonic() >= until:
            raise _error(registry, firm, values)
        check()
        time.sleep(_PAUSE)


def _error(registry: Registry, wrong: Sequence[Change], found: Mapping[Key, str | None]) -> VerifyError:
    hints = dict.fromkeys(registry.resource(change).hint for change in wrong)
    return VerifyError(
        "; ".join(_mismatch(registry, change, found[change.key]) for change in wrong),
        hint=next(iter(hints), ""),
        facts={
            "wanted": {f"{change.kind} {change.name}": change.after for change in wrong},
            "found": {f"{change.kind} {change.name}": found[change.key] for change in wrong},
        },
    )


def _mismatch(registry: Registry, change: Change, found: str | None) -> str:
    """`0000:01:00.0 should be nouveau, and is vfio-pci`."""
    wanted = registry.resource(change).describe(change)
    if found is None:
        return f"{wanted.name} should be {wanted.after}, and is gone"
    now = registry.resource(change).describe(change.model_copy(update={"before": found})).before
    return f"{wanted.name} should be {wanted.after}, and is {now}"


def verify_checks(registry: Registry, context: Context, plan: Plan) -> Mapping[str, Any]:
    """Run the plan's checks and return their report. Raises VerifyError, KernelRefused."""
    report: dict[str, Any] = {}
    for request in plan.checks:
        report |= registry.check(request.kind).verify(context, plan, request.subjects)
    return report


def is_done(registry: Registry, context: Context, plan: Plan) -> bool:
    """Return whether the plan was completed, optional changes included, and only its last journal entry is missing."""
    values = read_changes(context.kernel, registry, plan.changes)
    if not all(registry.resource(change).shows_done(change, values[change.key]) for change in plan.changes):
        return False
    try:
        verify_checks(registry, context, plan)
    except (VerifyError, KernelRefused):
        return False  # a guest could not use it, so it must be rolled back
    return True


def dead(registry: Registry, context: Context, plan: Plan) -> Mapping[str, str]:
    """Return the dead devices, each with the evidence. Raises Stuck if a read never returned."""
    marked: dict[str, str] = {}
    for request in plan.checks:
        marked |= registry.check(request.kind).dead(context, request.subjects)
    return marked
