"""Renders what can enforce shares of GPUs, and what applies to each. May not read the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from vfioctl.console.columns import fact_grid, note_lines
from vfioctl.console.words import plain
from vfioctl.placement.model.share import Enforcement
from vfioctl.sharing.model.enforcement import Enforced, GpuPlan, Method, SharePlan
from vfioctl.units import format_size

_INDENT = 2


def share_page(plan: SharePlan, command: Callable[[str], str]) -> RenderableType:
    """Render a plan. `command`: adds to a command of vfioctl the options that select the host."""
    parts: list[RenderableType] = []
    for gpu in plan.gpus:
        parts += [*([Text()] if parts else []), *_gpu(gpu, command)]
    return Stack(*parts, *note_lines(plan.warnings))


def _gpu(plan: GpuPlan, command: Callable[[str], str]) -> Iterator[RenderableType]:
    gpu = plan.gpu
    yield Text(plain(f"{gpu.name}  {gpu.address}  {gpu.title}  ({gpu.driver or 'no driver'})"), style="bold")
    rows = [(method.enforcement, _words(method, command)) for method in plan.methods]
    yield Padding.indent(fact_grid([(str(name), Text(words)) for name, words in rows]), _INDENT)
    for enforced in plan.shares:
        yield Text()
        yield from _share(enforced)


def _words(method: Method, command: Callable[[str], str]) -> str:
    next_command = method.next_command
    if next_command.startswith("vfioctl "):
        next_command = command(next_command)
    after = f": {next_command}" if next_command else ""
    return plain(f"{'yes' if method.available else 'no ':<3}  {method.words}{after}")


def _share(enforced: Enforced) -> Iterator[RenderableType]:
    whose = f"claim {enforced.claim} of {enforced.owner}"
    if enforced.cores_by is None and enforced.memory_by is None:
        yield Padding.indent(Text(plain(f"{whose}: the whole GPU; nobody else gets a share of it")), _INDENT)
        return
    parts = []
    if enforced.cores_by:
        parts.append(f"{enforced.cores} cores {_by(enforced.cores_by)}")
    if enforced.memory_by:
        parts.append(f"{format_size(enforced.memory)} {_by(enforced.memory_by)}")
    yield Padding.indent(Text(plain(f"{whose}: {', '.join(parts)}")), _INDENT)
    for gap in enforced.gaps:
        yield Padding.indent(Text(plain(f"not enforced: {gap}")), 2 * _INDENT)


def _by(enforcement: Enforcement) -> str:
    return "only reported" if enforcement is Enforcement.NONE else f"by {enforcement}"
