"""Renders how a running domain compares with its document. May not read the host."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.text import Text

from vfioctl.console.columns import Whole
from vfioctl.domain.model.verification import Area, State, Verification, VerifiedFact

_AREAS = {
    Area.CPUS: "CPUs",
    Area.MEMORY: "memory",
    Area.DEVICES: "devices",
    Area.DEFINITION: "definition",
    Area.GUEST: "guest",
}
_STYLES = {State.DIFFERS: "bold red", State.UNKNOWN: "yellow"}
_WITH_VALUES = (Area.MEMORY, Area.GUEST)


def verification_page(verification: Verification) -> RenderableType:
    """Render each area: how much is as wanted, and what differs or is unknown."""
    process = f"process {verification.pid}" if verification.pid is not None else "its QEMU process is not known"
    lines: list[RenderableType] = [Text(f"Domain {verification.name}, {process}", style="bold")]
    for area, title in _AREAS.items():
        facts = [fact for fact in verification.facts if fact.area is area]
        if facts:
            lines.extend(_area(title, facts))
    return Stack(*lines)


def _area(title: str, facts: list[VerifiedFact]) -> Iterator[RenderableType]:
    good = [fact for fact in facts if fact.state is State.OK]
    yield Text(f"{title}: {len(good)} of {len(facts)} as wanted")
    if facts[0].area in _WITH_VALUES:
        for fact in good:
            yield Whole(f"{fact.what}: {fact.found}")
    for fact in facts:
        if fact.state is State.DIFFERS:
            yield Text.assemble(
                ("differs", _STYLES[fact.state]), f": {fact.what}: wanted {fact.wanted}, found {fact.found}"
            )
            yield Whole(f"-> {fact.remedy}")
        elif fact.state is State.UNKNOWN:
            yield Text.assemble(("unknown", _STYLES[fact.state]), f": {fact.what}: {fact.why}")
