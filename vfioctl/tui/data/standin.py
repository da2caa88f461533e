"""To be deleted: stands in for `Host.overview`, `refresh`, `watch`, `why_read_only` and the new arguments of `apply`,
`claims.create` until they are there. Nothing else may be put here."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from vfioctl.core.events import EventKind, Progress, StepEvent
from vfioctl.errors import StalePlan, VfioctlError
from vfioctl.inventory.model.values import PciAddress
from vfioctl.overview.model.event import EventSource, HostEvent, Stop
from vfioctl.overview.model.overview import Overview, Part, UnfinishedChange

if TYPE_CHECKING:
    from vfioctl.claims.model.claim import Claimed, Preview
    from vfioctl.core.change import Outcome, Plan
    from vfioctl.host import Host
    from vfioctl.placement.model.request import ClaimRequest

Cancel = Callable[[], bool]
_KINDS = (EventKind.BEGIN, EventKind.END, EventKind.VERIFY)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def why_read_only(host: Host) -> str:
    return host.session.kernel.read_only


def overview(host: Host, *, without: Collection[Part] = ()) -> Overview:
    from vfioctl.claims.api import ClaimsApi

    at = now()
    inventory = host.inventory()
    missing: dict[Part, str] = {}
    result = Overview(at=at, inventory=inventory, read_only=why_read_only(host), missing=missing)
    values = vars(result) | {"missing": missing}

    def fill(part: Part, name: str, read: Callable[[], object]) -> None:
        if part not in without:
            try:
                values[name] = read()
            except VfioctlError as error:
                missing[part] = error.message

    def domains() -> object:
        from vfioctl.domain.render.domains import listed

        found = host.domain.domains
        return tuple(listed(known) for known in found.known(found.libvirt()))

    def changes() -> object:
        entries = host.unfinished()
        return tuple(UnfinishedChange(number=e.id, subjects=e.plan.subjects, under_way=False) for e in entries)

    fill(Part.CLAIMS, "claims", ClaimsApi(host.session).claims)
    fill(Part.VGPUS, "vgpus", host.vgpu.vgpus)
    gpus = [gpu.address for gpu in inventory.gpus if not gpu.is_vf]
    fill(Part.HOLDERS, "holders", lambda: host.devices.holders(gpus))
    fill(Part.DOMAINS, "domains", domains)
    fill(Part.CHANGES, "unfinished", changes)
    return Overview(**{name: values[name] for name in Overview.__dataclass_fields__})


def refresh(host: Host, _last: Overview, _addresses: Collection[PciAddress]) -> Overview:
    return overview(host)


def watch(host: Host, *, stop: Stop, interval: float) -> Iterator[HostEvent]:
    last = _state(host)
    while not stop():
        time.sleep(0.1)
        if (state := _state(host)) != last:
            last = state
            yield HostEvent(at=now(), source=EventSource.KERNEL, action="change", subject="", addresses=())


def _state(host: Host) -> object:
    file = getattr(host.session.kernel, "_file", None)
    ledger = host.session.ledger
    return tuple((p.stat().st_ino, p.stat().st_mtime_ns) for p in (file, ledger) if p and p.exists())


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
