"""To be deleted: stands in for the argument `cancel` of `Host.apply` and of what makes and ends claims, and for
`preview` of `claims.create`, until they are there. Nothing else may be put here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vfioctl.core.events import EventKind, Progress, StepEvent
from vfioctl.errors import StalePlan

if TYPE_CHECKING:
    from vfioctl.claims.model.claim import Claimed, Preview
    from vfioctl.core.change import Outcome, Plan
    from vfioctl.host import Host
    from vfioctl.placement.model.request import ClaimRequest

Cancel = Callable[[], bool]
_KINDS = (EventKind.BEGIN, EventKind.END, EventKind.VERIFY)


def cancelling(progress: Progress, cancel: Cancel) -> Progress:
    def call(event: StepEvent) -> None:
        progress(event)
        if event.kind in _KINDS and cancel():
            raise KeyboardInterrupt

    return call


def apply(host: Host, plan: Plan, *, progress: Progress, cancel: Cancel) -> Outcome:
    return host.apply(plan, progress=cancelling(progress, cancel))


def create_claim(host: Host, request: ClaimRequest, *, preview: Preview, progress: Progress, cancel: Cancel) -> Claimed:
    def confirm(plan: Plan) -> None:
        if preview.plan is None or plan.id != preview.plan.id:
            raise StalePlan("the host changed after the plan was made", hint="make a new plan")

    return host.claims.create(request, progress=cancelling(progress, cancel), confirm=confirm)
