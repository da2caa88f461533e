"""Preconditions of a plan, verified before its first write: genuine, current, no unfinished change, files writable."""

from __future__ import annotations

from vfioctl.core.change import Plan
from vfioctl.core.journal import Journal, unfinished_error
from vfioctl.core.reading import read_changes, read_facts
from vfioctl.core.registry import Registry
from vfioctl.errors import BadDocument, NotPermitted, StalePlan
from vfioctl.kernel.protocol import Kernel


def refuse_forged(registry: Registry, plan: Plan) -> None:
    """Raise BadDocument unless the steps follow from the changes. The id only detects damage, not forgery."""
    if registry.is_forged(plan):
        raise BadDocument("the steps of the plan do not follow from its changes", hint="make a new plan")


def refuse_unfinished(registry: Registry, plan: Plan, journal: Journal, kernel: Kernel) -> None:
    """Raise Unfinished if an earlier change of one of the plan's devices, or of a related one, was interrupted."""
    unfinished = journal.unfinished()
    if not unfinished:
        return
    concerned = {*(fact.subject for fact in plan.facts), *plan.subjects}
    for fact in plan.facts:
        concerned |= set(registry.source(fact.kind).relatives(kernel, fact))
    for entry in unfinished:
        if cut_short := [subject for subject in entry.plan.subjects if subject in concerned]:
            raise unfinished_error(cut_short)


def refuse_unwritable(plan: Plan, kernel: Kernel) -> None:
    """Raise NotPermitted with the names of the files that may not be written."""
    if kernel.read_only:
        raise NotPermitted(kernel.read_only, hint="use --simulate to try changes")
    files = sorted({step.target for step in plan.steps if step.target.startswith(("/sys/", "/proc/"))})
    refused = [file for file in files if kernel.has(file) and not kernel.writable(file)]
    if refused:
        raise NotPermitted(
            f"not permitted to write {', '.join(refused)}",
            hint="run it as root; in a container, /sys must be mounted read-write",
            facts={"files": refused},
        )


def refuse_stale(registry: Registry, plan: Plan, kernel: Kernel) -> None:
    """Raise StalePlan if a fact that the plan relies on, or a value that it starts from, has changed."""
    fixed = [change for change in plan.changes if registry.resource(change).fixed_start]
    values = read_changes(kernel, registry, fixed)
    changed = [change.subject for change in fixed if values[change.key] != change.before]
    now = read_facts(kernel, registry, plan.facts)
    broken = [
        fact for fact in plan.facts if not registry.source(fact.kind).holds(fact, now.get((fact.kind, fact.subject)))
    ]
    changed += [fact.subject for fact in broken]
    if changed:
        raise StalePlan(
            f"{', '.join(dict.fromkeys(changed))} changed after the plan was made",
            hint="make a new plan",
            facts={
                "expected": [fact.model_dump() for fact in broken],
                "found": [
                    now[fact.kind, fact.subject].model_dump() if (fact.kind, fact.subject) in now else None
                    for fact in broken
                ],
            },
        )
