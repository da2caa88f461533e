"""Renders the differences between the claims and the machine. May not read the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from vfioctl.claims.model.difference import Difference, Fix
from vfioctl.console.words import plain

_INDENT = 4
_FIXES = {
    Fix.RELEASE: "releases the claim",
    Fix.END: "ends the claim, which has changed nothing",
    Fix.RENEW: "writes vfioctl's CDI files again",
    Fix.RESTORE: "binds or creates again what the claim had, and keeps it",
}


def differences_page(differences: Sequence[Difference], command: Callable[[str], str]) -> RenderableType:
    """Render differences. `command`: adds to a remedy the options that select the host."""
    return Stack(*(part for difference in differences for part in _difference(difference, command)))


def fix_line(difference: Difference) -> str:
    """Return what `--fix` does about a difference; empty for nothing."""
    return f"reconcile --fix {_FIXES[difference.fix]}" if difference.fix is not Fix.NOTHING else ""


def _difference(difference: Difference, command: Callable[[str], str]) -> Iterator[RenderableType]:
    whose = f"claim {difference.claim} of {difference.owner}" if difference.claim else ""
    yield Text(
        plain(": ".join(filter(None, [difference.kind, " ".join(filter(None, [whose, difference.device]))]))),
        style="bold",
    )
    yield Padding.indent(Text(plain(difference.words)), _INDENT)
    if fix := fix_line(difference):
        yield Padding.indent(Text(fix), _INDENT)
    yield Padding.indent(Text(plain(f"-> {command(difference.remedy)}")), _INDENT)
