"""Makes of an action what its plan page shows, and what applies that very plan. Calls the apis only, in a thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rich.text import Text

from vfioctl.console.choice import on_this_host
from vfioctl.console.columns import Whole
from vfioctl.console.plan_page import outcome_page, part, plan_page, planned_page
from vfioctl.console.words import listed, plain
from vfioctl.errors import BadSpec, StalePlan, Stuck
from vfioctl.tui.data.change import Apply

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vfioctl.core.change import Plan
    from vfioctl.core.events import Cancel, Progress
    from vfioctl.host import Host

    Pages = Sequence[RenderableType]

Answers = Mapping[str, str]


class Prepared(NamedTuple):
    """What a plan page shows, and what `y` does."""

    title: str
    pages: Sequence[RenderableType]
    apply: Apply | None
    """None if there is nothing to do."""


Prepare = Callable[["Host", Sequence[str], Answers, int], Prepared]
"""Callback (host, subjects, answers, width of the page in columns)."""


def bind(host: Host, subjects: Sequence[str], _answers: Answers, _width: int) -> Prepared:
    """Prepare binding functions to VFIO."""
    return _of_plan(host, host.binding.plan_bind(subjects))


def unbind(host: Host, subjects: Sequence[str], _answers: Answers, _width: int) -> Prepared:
    """Prepare giving functions back to their drivers."""
    return _of_plan(host, host.binding.plan_unbind(subjects))


def bind_group(host: Host, subjects: Sequence[str], _answers: Answers, _width: int) -> Prepared:
    """Prepare binding functions and all others in their groups to VFIO."""
    return _of_plan(host, host.binding.plan_bind(subjects, with_group=True))


def unbind_group(host: Host, subjects: Sequence[str], _answers: Answers, _width: int) -> Prepared:
    """Prepare giving functions and all others in their groups back to their drivers."""
    return _of_plan(host, host.binding.plan_unbind(subjects, with_group=True))


def create(host: Host, subjects: Sequence[str], answers: Answers, _width: int) -> Prepared:
    """Prepare creating vGPUs on a card."""
    count = _number(answers["count"])
    return _of_plan(host, host.vgpu.plan_create(answers["type"], parent=subjects[0], count=count))


def remove(host: Host, subjects: Sequence[str], _answers: Answers, _width: int) -> Prepared:
    """Prepare removing vGPUs."""
    return _of_plan(host, host.vgpu.plan_remove(subjects))


def sriov(host: Host, subjects: Sequence[str], answers: Answers, _width: int) -> Prepared:
    """Prepare setting the number of VFs."""
    return _of_plan(host, host.vgpu.plan_vfs(subjects[0], _number(answers["count"])))


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 7):
        raise BadSpec(f"not a number: {text[:20]!r}")
    return int(text)


def _of_plan(host: Host, plan: Plan) -> Prepared:
    registry = host.session.registry

    def apply(progress: Progress, cancel: Cancel) -> Pages:
        return [outcome_page(host.apply(plan, progress=progress, cancel=cancel), registry)]

    return Prepared(plan.intent.title(), [planned_page(plan, registry)], None if plan.nothing_to_do else apply)


def claim(host: Host, subjects: Sequence[str], answers: Answers, width: int) -> Prepared:
    """Prepare claiming devices for an owner."""
    from vfioctl.claims.render.claims import claim_page
    from vfioctl.placement.model.request import ClaimRequest
    from vfioctl.placement.render import placement_page

    request = ClaimRequest(owner=answers["owner"], devices=host.claims.devices_called(subjects))
    preview = host.claims.preview_create(request)
    first = Text(f"Claim for {answers['owner']}", style="bold")
    chosen = placement_page(preview.placement, preview.inventory, width=width)
    pages = [first, Text(), chosen, Text(), *_changing(host, preview.plan)]

    def apply(progress: Progress, cancel: Cancel) -> Pages:
        made = host.claims.create(request, preview=preview, progress=progress, cancel=cancel)
        problem = [Text(f"vfioctl: claim {made.claim.id}: {made.problem}")] if made.problem else []
        return [claim_page(made.claim, host.claims.nodes(made.claim)), *problem]

    return Prepared(f"claim {', '.join(subjects)} for {answers['owner']}", pages, apply)


def _changing(host: Host, plan: Plan | None) -> Pages:
    if plan is None:
        return [Text("Nothing has to be changed on the host.")]
    return [plan_page(plan, host.session.registry, undone_by=("vfioctl claim release CLAIM",))]


def release(host: Host, subjects: Sequence[str], _answers: Answers, _width: int) -> Prepared:
    """Prepare releasing a claim."""
    claim = host.claims.claim(subjects[0])
    plan = host.claims.preview_release(claim)
    changing = [planned_page(plan, host.session.registry)] if plan else [Text("Nothing has to be changed on the host.")]
    title = f"release claim {claim.id} of {claim.owner}"

    def confirm(fresh: Plan) -> None:
        _refuse_other([fresh], [plan] if plan else [])

    def apply(progress: Progress, cancel: Cancel) -> Pages:
        made = host.claims.release(claim.id, progress=progress, cancel=cancel, confirm=confirm)
        outcome = [outcome_page(made.outcome, host.session.registry)] if made.outcome else []
        return [Text(f"Claim {claim.id} of {claim.owner} is released."), *outcome]

    first = Text(f"Claim {claim.id} of {claim.owner} would be released.", style="bold")
    return Prepared(title, [first, Text(), *changing], apply if claim.is_live else None)


def start(host: Host, subjects: Sequence[str], _answers: Answers, _width: int) -> Prepared:
    """Prepare starting a domain."""
    from vfioctl.domain.render.running import start_page

    name = subjects[0]
    preview = host.domain.lifecycle.preview(name)

    def apply(progress: Progress, cancel: Cancel) -> Pages:
        fresh = host.domain.lifecycle.preview(name)
        _refuse_other(fresh.plans, preview.plans)
        done = host.domain.lifecycle.start(name, progress=progress, cancel=cancel)
        said = [f"Domain {done.name} {'runs already' if done.ran_already else 'started'}."]
        said += [f"Claim {claim.id} was made for it, and ends with it." for claim in done.made]
        said += [f"Claim {claim.id} of {claim.owner} serves it, and stays." for claim in done.kept]
        return [Text(line) for line in said]

    pages = [start_page(preview, host.session.registry)]
    return Prepared(f"start domain {name}", pages, None if preview.runs_already else apply)


def _refuse_other(fresh: Sequence[Plan], shown: Sequence[Plan]) -> None:
    """Raise StalePlan unless what would be applied now is what was shown."""
    if [plan.id for plan in fresh] != [plan.id for plan in shown]:
        raise StalePlan("the host changed after the plan was made", hint="make a new plan")


def stop(host: Host, subjects: Sequence[str], _answers: Answers, _width: int) -> Prepared:
    """Prepare shutting a domain down."""
    from vfioctl.domain.render.running import stop_lines

    name = subjects[0]
    preview = host.domain.lifecycle.preview_stop(name)

    def apply(progress: Progress, cancel: Cancel) -> Pages:
        done = host.domain.lifecycle.stop(name, progress=progress, cancel=cancel)
        return [Text(line) for line in stop_lines(done)]

    pages = [Text(line) for line in stop_lines(preview, dry_run=True)]
    return Prepared(f"stop domain {name}", pages, apply if preview.ran or preview.claims else None)


def cordon(host: Host, subjects: Sequence[str], answers: Answers, _width: int) -> Prepared:
    """Prepare giving devices to no more pods."""
    from vfioctl.kubelet.model.cordon import CORDON
    from vfioctl.kubelet.render.status import pod_words

    there = host.kubelet.cordons()
    devices = [device for resource in host.kubelet.status().resources for device in resource.devices]
    said = [f"{subject} already: {there[subject].words}" for subject in subjects if subject in there]
    said += [
        f"{d.subject}: {pod_words(d)} keeps it until it ends" for d in devices if d.subject in subjects and d.owner
    ]
    first = f"No pod would get {listed(subjects)} from now on."
    undo = Whole(plain(on_this_host(f"vfioctl kubelet uncordon {' '.join(subjects)}")))

    def apply(_progress: Progress, _cancel: Cancel) -> Pages:
        return [Text(plain(f"Cordoned: {listed(host.kubelet.cordon(subjects, why=answers['why'], wait=0))}."))]

    pages = [*_of_words(first, said), *part("Undone by", [undo])]
    is_done = all(subject in there and there[subject].kind == CORDON for subject in subjects)
    return Prepared(f"cordon {', '.join(subjects)}", pages, None if is_done else apply)


def uncordon(host: Host, subjects: Sequence[str], _answers: Answers, _width: int) -> Prepared:
    """Prepare giving cordoned devices to pods again."""
    there = host.kubelet.cordons()
    cordoned = [subject for subject in subjects if subject in there]

    def apply(_progress: Progress, _cancel: Cancel) -> Pages:
        return [Text(plain(f"Uncordoned: {listed(host.kubelet.uncordon(cordoned))}."))]

    first = f"Pods would get {listed(cordoned)} again." if cordoned else "None of these devices is cordoned."
    pages = _of_words(first, [f"{subject}: {there[subject].words}" for subject in cordoned])
    return Prepared(f"uncordon {', '.join(subjects)}", pages, apply if cordoned else None)


def _of_words(first: str, lines: Sequence[str]) -> list[RenderableType]:
    return [Text(plain(first), style="bold"), *(Text(plain(line)) for line in (*[""][: len(lines)], *lines))]


def recover(host: Host, _subjects: Sequence[str], _answers: Answers, _width: int) -> Prepared:
    """Prepare finishing interrupted changes."""
    registry = host.session.registry
    repairs = host.plan_recovery()
    if repairs and all(repair.refused for repair in repairs):
        raise Stuck("; ".join(repair.refused for repair in repairs))
    pages: list[RenderableType] = []
    for repair in repairs:
        pages += [*([Text()] if pages else []), planned_page(repair, registry)]

    def apply(progress: Progress, _cancel: Cancel) -> Pages:  # a rollback cannot be rolled back
        _refuse_other([repair.entry.plan for repair in host.plan_recovery()], [repair.entry.plan for repair in repairs])
        return [outcome_page(outcome, registry) for outcome in host.recover(progress=progress)]

    nothing = [Text("Nothing to recover: no change was interrupted.")]
    return Prepared("recover interrupted changes", pages or nothing, apply if repairs else None)


PREPARE: Mapping[str, Prepare] = {
    "bind": bind,
    "unbind": unbind,
    "bind-group": bind_group,
    "unbind-group": unbind_group,
    "claim": claim,
    "release": release,
    "create": create,
    "remove": remove,
    "sriov": sriov,
    "start": start,
    "stop": stop,
    "cordon": cordon,
    "uncordon": uncordon,
    "recover": recover,
}
"""By the name of the action (`vfioctl.tui.model.actions`)."""
