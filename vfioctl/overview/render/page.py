"""Renders the host in one look, and events as lines. May not read the host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.text import Text

from vfioctl.console.columns import note_lines
from vfioctl.console.words import counted, plain
from vfioctl.inventory.render.listing import inventory_table
from vfioctl.overview.model.event import EventSource, HostEvent
from vfioctl.overview.model.overview import Overview, Part

_CLOCK = slice(11, 19)


def overview_page(overview: Overview, *, width: int, everything: bool = False, event: HostEvent | None = None) -> Stack:
    """Render a host for `width` columns, with the last event."""
    table = inventory_table(overview.inventory, width=width, everything=everything)
    counts = [Text(line) for line in _counts(overview)]
    return Stack(table, *note_lines(_notes(overview)), Text(), *counts, *_status(overview, event))


def _notes(overview: Overview) -> Iterator[str]:
    for holder in overview.holders.refusing:
        yield f"{holder.address} is held by {holder.words}"
    for change in overview.unfinished:
        subjects = ", ".join(change.subjects)
        how = f"is under way (process {change.process})" if change.under_way else "was interrupted: vfioctl recover"
        yield f"a change of {subjects} {how}"
    for part, why in overview.missing.items():
        if part is not Part.DOMAINS:  # most hosts have no libvirt
            yield f"{part} are not known: {why}"


def _counts(overview: Overview) -> Iterator[str]:
    live = [vgpu for vgpu in overview.vgpus.instances if vgpu.state != "defined"]
    if overview.vgpus.cards:
        yield f"{counted(len(live), 'vGPU')} on {counted(len(overview.vgpus.cards), 'card')} that can have them"
    running = sum(domain.state != "defined" for domain in overview.domains)
    if overview.domains:
        yield f"{counted(len(overview.domains), 'domain')}, {running} running"


def _status(overview: Overview, event: HostEvent | None) -> Iterator[RenderableType]:
    last = f"; {event_line(event)}" if event else ""
    yield Text(plain(f"As of {overview.at[_CLOCK]} UTC{last}"), style="dim", no_wrap=True, overflow="ellipsis")


def event_line(event: HostEvent) -> str:
    """Return an event as a line of text."""
    times = f" ({event.count} times)" if event.count > 1 else ""
    source = "" if event.source is EventSource.WATCH else f"{event.source}: "
    words = " ".join(filter(None, (event.action, event.subject, event.detail)))
    return plain(f"{event.at[_CLOCK]} {source}{words}{times}")


def event_document(event: HostEvent) -> dict[str, object]:
    """Return an event as `watch --json` has it."""
    return asdict(event)
