"""Renders measured GPU time as a table. May not read the host."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.text import Text

from vfioctl.console.columns import Column, note_lines, table
from vfioctl.console.words import counted, plain
from vfioctl.sharing.model.gpu_time import Measurement, Source, Usage

_COLUMNS = (
    Column("GPU"),
    Column("SOURCE"),
    Column("GPU TIME", right=True),
    Column("ERROR", right=True),
    Column("SHARE", right=True),
    Column("QUOTA", right=True),
    Column("CONTROL GROUP"),
)
_MEMORY = (Column("GPU"), Column("MEMORY", right=True), Column("CONTROL GROUP"))


def measurement_page(measurement: Measurement, *, width: int) -> RenderableType:
    """Render a measurement, for `width` columns."""
    parts: list[RenderableType] = []
    if measurement.usages:
        parts += table(_COLUMNS, [_row(measurement, usage) for usage in measurement.usages], width)
    else:
        parts.append(Text(f"No GPU was used in {measurement.seconds:.1f} s, as far as it can be measured."))
    if measurement.memory:
        rows = [
            (gpu, f"{size / (1 << 20):.0f} MiB", group) for (group, gpu), size in sorted(measurement.memory.items())
        ]
        parts += [Text(), *table(_MEMORY, rows, width)]
    parts += note_lines(_notes(measurement))
    return Stack(*parts)


def _row(measurement: Measurement, usage: Usage) -> tuple[str, ...]:
    return (
        usage.gpu,
        str(usage.source),
        f"{usage.seconds:.3f} s",
        f"± {usage.error:.3f} s",
        _percent(measurement.share(usage)),
        _percent(measurement.quota(usage.group)),
        usage.group,
    )


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{100 * part:.1f} %"


def _notes(measurement: Measurement) -> Iterator[str]:
    if measurement.usages:
        yield f"measured for {measurement.seconds:.1f} s"
    if any(usage.source is Source.LEASE for usage in measurement.usages):
        yield "lease: the GPU is passed through; the time is how long it is, because the host sees no use of it"
    if measurement.would_freeze:
        groups = ", ".join(measurement.would_freeze)
        yield f"would freeze {counted(len(measurement.would_freeze), 'control group')}: {groups}"
    for group, why in measurement.excluded.items():
        yield f"never frozen: {plain(group)}: {plain(why)}"
    for name, why in measurement.problems.items():
        yield f"not measured: {plain(name)}: {plain(why)}"
