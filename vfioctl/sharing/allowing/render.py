"""Renders what cgroups may open. May not read the host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.text import Text

from vfioctl.console.words import counted, plain
from vfioctl.sharing.allowing.values import Allowed

NOTHING = "vfioctl restricts no cgroup."


def allowed_page(cgroups: Sequence[Allowed]) -> RenderableType:
    """Render what each cgroup may open, by what, and who has refused nodes open."""
    lines = [line for allowed in cgroups for line in ("", *_lines(allowed))]
    return Stack(*map(Text, lines[1:]))


def _lines(allowed: Allowed) -> Iterator[str]:
    yield plain(allowed.cgroup)
    by = " and ".join(allowed.mechanisms) or ("a cgroup above" if allowed.above else "nothing")
    yield f"  restricted by  {by}"
    yield f"  may open       {', '.join(map(str, allowed.gpus)) or 'no GPU'}"
    if allowed.refused:
        yield f"  refused        {', '.join(allowed.refused)}"
    for place, numbers in allowed.above.items():
        yield f"  refused above  {plain(place)}: {', '.join(numbers)}"
    if allowed.others:
        yield f"  other programs {plain(', '.join(allowed.others))}: they may refuse more"
    for holder in allowed.holders:
        yield f"  still open     process {holder.pid} ({plain(holder.name)}) has {plain(holder.path)}: not revoked"
    if allowed.unknown:
        yield f"  still open     not known: {plain(allowed.unknown)}"
    elif allowed.unread:
        yield f"  still open     {counted(allowed.unread, 'process')} of this host could not be read"
