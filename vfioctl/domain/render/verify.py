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


def verification_page(found: Verification) -> RenderableType:
    """Render each area: how much is as wanted, and what differs or is unknown."""
    process = f"process {found.pid}" if found.pid is not None else "its QEMU process is not known"
    lines: list[RenderableType] = [Text(f"Domain {found.name}, {process}", style="bold")]
    for area, title in _AREAS.items():
        facts = [each for each in found.facts if each.area is area]
        if facts:
            lines.extend(_area(title, facts))
    return Stack(*lines)


def _area(title: str, facts: list[VerifiedFact]) -> Iterator[RenderableType]:
    good = [each for each in facts if each.state is State.OK]
    yield Text(f"{title}: {len(good)} of {len(facts)} as wanted")
    if facts[0].area in _WITH_VALUES:
        for each in good:
            yield Whole(f"{each.what}: {each.found}")
    for each in facts:
        if each.state is State.DIFFERS:
            yield Text.assemble(
                ("differs", _STYLES[each.state]), f": {each.what}: wanted {each.wanted}, found {each.found}"
            )
            yield Whole(f"-> {each.remedy}")
        elif each.state is State.UNKNOWN:
            yield Text.assemble(("unknown", _STYLES[each.state]), f": {each.what}: {each.why}")
