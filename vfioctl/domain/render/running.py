"""Renders how a domain starts, stops and runs, and how it would. May not read the host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.text import Text

from vfioctl.claims.model.claim import LABEL, Claim
from vfioctl.console.columns import Whole, fact_grid
from vfioctl.console.words import counted, plain
from vfioctl.domain.model.running import StartDocument, StartPreview, StopDocument
from vfioctl.domain.model.verification import Area, State, Verification, VerifiedFact
from vfioctl.units import format_cpu_list, format_size

if TYPE_CHECKING:
    from vfioctl.core.registry import Registry
    from vfioctl.domain.run.lifecycle import Preview, Started, Stopped


def start_document(done: Started) -> StartDocument:
    """Return the document of `start --json`."""
    return StartDocument(
        domain=done.name,
        uri=done.uri,
        result="runs already" if done.ran_already else "started",
        claims=_ids(done.made),
        kept=_ids(done.kept),
    )


def _ids(claims: Sequence[Claim]) -> tuple[str, ...]:
    return tuple(claim.id for claim in claims)


def start_preview(preview: Preview) -> StartPreview:
    """Return the document of `start --dry-run --json`."""
    return StartPreview(
        domain=preview.name,
        uri=preview.uri,
        result="runs already" if preview.runs_already else "would start",
        kept=_ids(preview.kept),
        placement=preview.placement.document() if preview.placement else None,
        plan=preview.plan,
        over=_ids(preview.over),
        before=preview.before,
        managed=() if preview.runs_already else preview.needs.managed,
    )


def start_page(preview: Preview, registry: Registry) -> RenderableType:
    """Render what starting a domain would do."""
    if preview.runs_already:
        return Text(f"Domain {plain(preview.name)} runs already.")
    title = Text(f"Start domain {plain(preview.name)} at {plain(preview.uri)}", style="bold")
    parts: list[RenderableType] = [title, fact_grid(_facts(preview), style="bold")]
    for plan in preview.plans:
        from vfioctl.console.plan_page import planned_page

        parts += [Text(""), planned_page(plan, registry)]
    return Stack(*parts)


def _facts(preview: Preview) -> Iterator[tuple[str, str]]:
    placement = preview.placement
    for number, claim in enumerate(preview.over):
        yield "" if number else "would release", f"{claim.id} of {plain(claim.owner)}, whose run is over"
    for number, claim in enumerate(preview.kept):
        ends = "ends with it" if LABEL in claim.labels else "stays"
        yield "" if number else "claims of its own", f"{claim.id}, which {ends}"
    for number, device in enumerate(placement.devices if placement else ()):
        yield "" if number else "would claim", device
    yield "CPUs", format_cpu_list(placement.cpus) if placement and placement.cpus else ""
    for number, (node, bytes_, pages) in enumerate(placement.hugepages if placement else ()):
        yield "" if number else "hugepages", f"{counted(pages, 'page')} of {format_size(bytes_)} on node {node}"
    for number, device in enumerate(preview.needs.managed):
        yield "" if number else "libvirt binds", device


def stop_document(stopped: Stopped, *, dry_run: bool = False) -> StopDocument:
    """Return the document of `stop --json`."""
    return StopDocument(
        domain=stopped.name,
        uri=stopped.uri,
        result=("would stop" if dry_run else "stopped") if stopped.ran else "does not run",
        claims=_ids(stopped.claims),
    )


def stop_lines(stopped: Stopped, *, dry_run: bool = False) -> list[str]:
    """Return what stopping has done, or would do, a sentence a line."""
    name = plain(stopped.name)
    if stopped.ran:
        first = f"Domain {name} would be shut down." if dry_run else f"Domain {name} stopped."
    else:
        first = f"Domain {name} does not run."
    did = "would be" if dry_run else "is"
    return [first, *(f"Claim {claim.id} {did} released: {_devices(claim)}." for claim in stopped.claims)]


def _devices(claim: Claim) -> str:
    return ", ".join(device.subject for device in claim.devices) or "no devices"


_STYLES = {State.DIFFERS: "bold red", State.UNKNOWN: "yellow"}
_WITH_VALUES = (Area.MEMORY, Area.GUEST)


def verification_page(verification: Verification) -> RenderableType:
    """Render each area: how much is as wanted, and what differs or is unknown."""
    process = f"process {verification.pid}" if verification.pid is not None else "its QEMU process is not known"
    lines: list[RenderableType] = [Text(f"Domain {verification.name}, {process}", style="bold")]
    for area in Area:
        if facts := [fact for fact in verification.facts if fact.area is area]:
            lines.extend(_area("CPUs" if area is Area.CPUS else area.value, facts))
    return Stack(*lines)


def _area(title: str, facts: list[VerifiedFact]) -> Iterator[RenderableType]:
    good = [fact for fact in facts if fact.state is State.OK]
    yield Text(f"{title}: {len(good)} of {len(facts)} as wanted")
    if facts[0].area in _WITH_VALUES:
        for fact in good:
            yield Whole(f"{fact.what}: {fact.found}")
    for fact in facts:
        if fact.state is State.DIFFERS:
            values = f": {fact.what}: wanted {fact.wanted}, found {fact.found}"
            yield Text.assemble(("differs", _STYLES[fact.state]), values)
            yield Whole(f"-> {fact.remedy}")
        elif fact.state is State.UNKNOWN:
            yield Text.assemble(("unknown", _STYLES[fact.state]), f": {fact.what}: {fact.why}")
