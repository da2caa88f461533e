"""What is refused before the first write: forged and stale plans, unfinished changes, files that may not be written."""

from __future__ import annotations

from vfioctl.apply.journal import Journal
from vfioctl.errors import BadDocument, NotPermitted, StalePlan, Unfinished
from vfioctl.kernel.seam import Kernel
from vfioctl.model.change import Plan, StepKind
from vfioctl.plan.steps import follows
from vfioctl.probe.bindings import read_facts


def refuse_forged(plan: Plan) -> None:
    """The id shows only that a plan is whole. Whoever wrote it, it writes what its changes take and nothing else."""
    if not follows(plan):
        raise BadDocument("the steps of the plan do not follow from its changes", hint="make a new plan")


def refuse_unfinished(plan: Plan, journal: Journal) -> None:
    """Raises Unfinished when an earlier change of one of its functions was cut short."""
    concerned = {fact.address for fact in plan.facts}
    for entry in journal.unfinished():
        if cut_short := [c.address for c in entry.plan.changes if c.address in concerned]:
            raise Unfinished(
                f"an earlier change of {', '.join(cut_short)} was cut short",
                hint="finish it first: back to what it was, or forward with --forward",
                next_command="vfioctl recover",
            )


def refuse_unwritable(plan: Plan, kernel: Kernel) -> None:
    """Raises NotPermitted, naming the files."""
    if kernel.read_only:
        raise NotPermitted(kernel.read_only, hint="use --simulate to try changes")
    files = sorted({step.target for step in plan.steps if step.kind == StepKind.WRITE})
    refused = [file for file in files if kernel.has(file) and not kernel.writable(file)]
    if refused:
        raise NotPermitted(
            f"not permitted to write {', '.join(refused)}",
            hint="run it as root; in a container, /sys must be mounted read-write",
            facts={"files": refused},
        )


def refuse_stale(plan: Plan, kernel: Kernel) -> None:
    """Raises StalePlan when a fact that the plan relies on does not hold any more."""
    now = read_facts(kernel, [fact.address for fact in plan.facts])
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
