"""Changes on a page: a plan before it runs, what came of it, and the journal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from vfioctl.console import words
from vfioctl.console.columns import Column, Heading, Layout, Whole
from vfioctl.console.notes import note_lines
from vfioctl.core.change import (
    KERNEL_CHOICE,
    Binding,
    Change,
    Fact,
    Outcome,
    Plan,
    Result,
    Step,
    StepKind,
    Verb,
)
from vfioctl.core.setting import Setting, SettingKind
from vfioctl.inventory.model.functions import is_vfio_driver
from vfioctl.vgpu.render.changes import asked_line, outcome_lines, proof_lines, settings_lines, undo_lines

VFS = "VFs"  # of a check, as plan/vGPUs.py has it
_WIDE = 1000
"""Rows of a page are as wide as they need to be: an address or a path that is cut is of no use."""


def plan_page(plan: Plan) -> RenderableType:
    """The whole plan: the facts it rests on, the steps, what becomes what, the proof, the way back."""
    if plan.nothing_to_do:
        return Stack(Text("Nothing to do, it is as asked for already:"), *_indented(_facts(_asked(plan))))
    return Stack(
        Text(f"Plan {plan.id}: {intent_line(plan)}", style="bold"),
        *(_part("It rests on", _facts(plan.facts)) if plan.facts else ()),
        *_part("Steps", _steps(plan.steps)),
        *(_part("What changes", (*_changes(plan.changes), *_settings(plan))) if plan.reset is None else ()),
        *_part("Verified by looking again", _proof(plan)),
        *(_part("Undone by", _undo(plan)) if plan.reset is None else ()),
        *note_lines(map(words.plain, plan.notes)),
    )


def intent_line(plan: Plan) -> str:
    """`bind 0000:41:00.0 to vfio-pci`."""
    intent = plan.intent
    if intent.vgpu_request is not None:
        return asked_line(plan, intent.vgpu_request)
    options = (
        ("--with-group", intent.with_group),
        ("--allow-boot-vga", intent.allow_boot_vga),
        ("--force-holders", intent.force_holders),
    )
    given = " ".join(option for option, wanted in options if wanted)
    goal = f"to {words.plain(intent.driver)}" if intent.driver else ""
    goal = f"by {words.plain(intent.method)}" if intent.method else goal
    return " ".join(filter(None, (intent.verb, words.listed(intent.devices), goal, given)))


def outcome_page(outcome: Outcome) -> RenderableType:
    """What came of a plan."""
    plan = outcome.plan
    if outcome.result == Result.NOTHING:
        return plan_page(plan)
    heading = f"{outcome.result.capitalize()}: {intent_line(plan)}"
    return Stack(
        Heading(heading, f"(plan {plan.id}, {outcome.seconds:.2f} s)"),
        *_indented(_found(plan, outcome)),
        *_ready(outcome),
    )


def _ready(outcome: Outcome) -> Iterator[Text]:
    groups = outcome.plan.viable_groups
    if outcome.result == Result.DONE and groups:
        noun, verb = ("group", "is") if len(groups) == 1 else ("groups", "are")
        yield Text(f"IOMMU {noun} {words.listed(groups)} {verb} ready for a guest.")


def _part(name: str, body: Iterable[RenderableType]) -> Iterator[RenderableType]:
    yield Text(f"\n{name}", style="bold")
    yield from _indented(body)


def _indented(body: Iterable[RenderableType]) -> Iterator[RenderableType]:
    return (line if isinstance(line, Whole) else Padding(line, (0, 0, 0, 2)) for line in body)


def _asked(plan: Plan) -> list[Fact]:
    return [fact for fact in plan.facts if fact.address in plan.intent.devices]


def _facts(facts: Sequence[Fact]) -> Iterator[Text]:
    rows = [
        (fact.address, fact.identity[:9], f"group {words.group_name(fact.iommu_group)}", _binding(fact.binding))
        for fact in facts
    ]
    return Layout((Column(""),) * 4, rows, _WIDE).flowing(rows)


def _steps(steps: Sequence[Step]) -> Iterator[RenderableType]:
    """Neighbours with the same reason share one line that says it."""
    margin = len(str(len(steps)))
    for why, alike in groupby(enumerate(steps, start=1), key=lambda numbered: numbered[1].why):
        for number, step in alike:
            target, arrow, value = _effect(step).partition(" <- ")
            yield Whole(f"{number:{margin}}  {target}", f"<- {value}" if arrow else "", hang=margin + 2)
        yield Padding(Text(f"({words.plain(why)})", style="dim"), (0, 0, 0, margin + 2))


def _effect(step: Step) -> str:
    target, value = words.plain(step.target), words.plain(step.value.strip())
    said: Mapping[StepKind, str] = {
        StepKind.LOAD: f"load the module {target}",
        StepKind.CHECK: f"ask again who holds {f'the {VFS} of ' if value == VFS else ''}{words.listed(target.split())}",
        StepKind.PERSISTENCE: f"persistence mode of {target} {'on' if value == '1' else 'off'}",
        StepKind.SERVICE: f"systemctl {'start' if value == 'active' else 'stop'} {target}",
        StepKind.KEEP: f"{'write' if value else 'remove'} {target}",
        StepKind.NVIDIA_VFS: f"sriov-manage {'-e' if value == '1' else '-d'} {target}",
    }
    return said.get(step.kind, f"{target} <- {value or '(an empty line)'}")


def _changes(changes: Sequence[Change]) -> Iterator[Text]:
    rows = [(change.address, _binding(change.before), "->", _binding(change.after)) for change in changes]
    return Layout((Column(""),) * 4, rows, _WIDE).flowing(rows)


def _settings(plan: Plan) -> Iterator[Text]:
    if plan.intent.vgpu_request is not None:
        return settings_lines(plan.settings)
    rows = [
        (words.plain(_setting_name(setting)), words.plain(setting.before) or "none", "->", words.plain(_after(setting)))
        for setting in plan.settings
        if setting.before != setting.after
    ]
    return Layout((Column(""),) * 4, rows, _WIDE).flowing(rows)


def _after(setting: Setting) -> str:
    return "on, then gone with the binding" if setting.kind == SettingKind.LOCK else setting.after or "none"


def _setting_name(setting: Setting) -> str:
    """`0000:41:00.0 power/control`; of what belongs to no function alone its own name."""
    own = f"/sys/bus/pci/devices/{setting.address}/"
    if setting.name.startswith(own):
        return f"{setting.address} {setting.name.removeprefix(own)}"
    if setting.kind in (SettingKind.LOCK, SettingKind.PERSISTENCE):
        return f"{setting.address} {'unbindLock' if setting.kind == SettingKind.LOCK else 'persistence mode'}"
    return setting.name


def _binding(binding: Binding) -> Text:
    if binding.driver == KERNEL_CHOICE:
        text = Text("the kernel's choice")
    else:
        text = words.driver_text(binding.driver, on_vfio=bool(binding.driver and is_vfio_driver(binding.driver)))
        text = Text("no driver") if binding.driver is None else text
    override = f", override {words.plain(binding.driver_override)}" if binding.driver_override else ""
    return text.append(override)


def _proof(plan: Plan) -> Iterator[Text]:
    if plan.reset is not None:
        yield Text("its configuration space answers")
        return
    if plan.intent.vgpu_request is not None:
        yield from proof_lines(plan)
        return
    yield Text("every function is bound as above")
    for group in plan.viable_groups:
        yield Text(f"the kernel, asked through /dev/vfio/{group}, calls group {group} viable")
    yield Text("if not, the host is put back as it was")


def _undo(plan: Plan) -> Iterator[RenderableType]:
    if plan.intent.vgpu_request is not None:
        yield from (Whole(words.plain(line)) for line in undo_lines(plan))
        return
    devices = " ".join(plan.intent.devices)
    if plan.intent.verb == Verb.BIND:
        yield Whole(f"vfioctl unbind {devices}")
        yield Text("which puts back what is recorded before the first step")
    else:
        flags = [flag for flag, given in (("--with-group", plan.intent.with_group),) if given]
        yield Whole(" ".join(["vfioctl bind", devices, *flags]))


def _found(plan: Plan, outcome: Outcome) -> Iterator[Text]:
    """What changed, as the last look at the host found it; where nothing did in the end, just that."""
    if plan.intent.vgpu_request is not None:
        return outcome_lines(outcome)
    now = {fact.address: fact.binding for fact in outcome.found}
    changed = {change.address: change for change in plan.changes}
    if outcome.result != Result.DONE or plan.reset is not None:
        return _facts([fact for fact in outcome.found if fact.address in changed])
    return _changes([c.model_copy(update={"after": now[a]}) for a, c in changed.items() if a in now])
