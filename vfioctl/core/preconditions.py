"""What is refused before the first write: forged and stale plans, unfinished changes, files that may not be written."""

from __future__ import annotations

from vfioctl.binding.plan.steps import follows
from vfioctl.binding.probe.settings import read_again
from vfioctl.core.change import Plan, StepKind, Verb
from vfioctl.core.journal import Journal
from vfioctl.core.setting import VF_COUNTS, SettingKind
from vfioctl.core.snapshot import LedgerSnapshot
from vfioctl.errors import BadDocument, Foreign, NotPermitted, StalePlan, Unfinished
from vfioctl.inventory.model.values import PciAddress
from vfioctl.inventory.probe.facts import read_facts
from vfioctl.kernel.protocol import Kernel
from vfioctl.vgpu.dialects.dialect import physical

_SEEN_BEFORE = (*VF_COUNTS, SettingKind.KEPT)


def refuse_forged(plan: Plan) -> None:
    """The id shows only that a plan is whole. Whoever wrote it, it writes what its changes take and nothing else."""
    if not follows(plan):
        raise BadDocument("the steps of the plan do not follow from its changes", hint="make a new plan")


def refuse_unfinished(plan: Plan, journal: Journal, kernel: Kernel) -> None:
    """Raises Unfinished when an earlier change of one of its functions, or of a PF of these, was cut short."""
    concerned = {*(fact.address for fact in plan.facts), *plan.subjects}
    concerned |= {PciAddress(physical(kernel, fact.address)) for fact in plan.facts}
    for entry in journal.unfinished():
        if cut_short := [each for each in entry.plan.subjects if each in concerned]:
            raise Unfinished(
                f"an earlier change of {', '.join(cut_short)} was cut short",
                hint="finish it first: back to what it was, or forward with --forward",
                next_command="vfioctl recover",
            )


def refuse_foreign(plan: Plan, ledger: LedgerSnapshot) -> None:
    """Raises Foreign when a vGPU that it removes is not vfioctl's any more."""
    wish = plan.intent.vgpu_request
    going = [str(setting.address) for setting in plan.settings if setting.removes]
    if wish is None or wish.foreign or plan.intent.verb != Verb.REMOVE or not going:
        return
    made = ledger.made()
    if others := [name for name in going if name not in made]:
        raise Foreign(f"vfioctl did not make {', '.join(others)}", hint="make a new plan; --foreign says all the same")


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
    _refuse_other_vgpus(plan, kernel)
    now = read_facts(kernel, [fact.address for fact in plan.facts]) if plan.facts else {}
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


def _refuse_other_vgpus(plan: Plan, kernel: Kernel) -> None:
    """Raises StalePlan when a vGPU, or the VFs of a card, are not what the plan takes them for."""
    wanted = [setting for setting in plan.settings if setting.is_vgpu or setting.kind in _SEEN_BEFORE]
    now = read_again(kernel, wanted) if wanted else {}
    if changed := [setting.address for setting in wanted if now[setting.key] != setting.before]:
        raise StalePlan(f"{', '.join(changed)} changed after the plan was made", hint="make a new plan")
