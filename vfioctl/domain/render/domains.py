"""Renders libvirt's domains, a fleet, and what build, check, diff and edit say of a document. May not read the host."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from vfioctl.console.columns import Column, Whole, fact_grid, note_lines, table
from vfioctl.console.words import counted, plain
from vfioctl.units import format_size

if TYPE_CHECKING:
    from vfioctl.domain.document.summary import Changed
    from vfioctl.domain.model.build import Comparison
    from vfioctl.domain.model.finding import CheckDocument, Finding
    from vfioctl.domain.model.fleet import FleetDocument
    from vfioctl.domain.model.layout import Choice
    from vfioctl.domain.model.listing import ListedDomain

_COLUMNS = (
    Column("NAME"),
    Column("STATE"),
    Column("BY"),
    Column("CLAIM"),
    Column("VCPUS", right=True),
    Column("MEMORY", right=True),
    Column("NODES", optional=True),
    Column("DEVICES"),
)
_STATES = {"running": "running", "defined": "defined, not running", "transient": "running, and gone when it stops"}


def domains_table(domains: Sequence[ListedDomain], *, width: int) -> RenderableType:
    """Render domains in the order given, for `width` columns."""
    return Stack(*table(_COLUMNS, [*map(_row, domains)], width))


def _row(domain: ListedDomain) -> tuple[str, ...]:
    unclear = f"its document cannot be read: {plain(domain.unknown)}" if domain.unknown else ""
    return (
        plain(domain.name),
        domain.state,
        "vfioctl" if domain.ours else "",
        plain(domain.claim),
        str(domain.vcpus or ""),
        format_size(domain.memory_bytes) if domain.memory_bytes else "",
        domain.nodes,
        unclear or " ".join(domain.devices),
    )


def domain_page(domain: ListedDomain) -> RenderableType:
    """Render one domain."""
    return Stack(Text(f"Domain {plain(domain.name)}", style="bold"), fact_grid(_facts(domain), style="bold"))


def _facts(domain: ListedDomain) -> Iterator[tuple[str, str]]:
    yield "UUID", domain.uuid
    yield "state", _STATES[domain.state]
    yield "defined by", "vfioctl" if domain.ours else "somebody else"
    yield "claim", plain(domain.claim)
    yield "template", plain(domain.template)
    yield "unknown", plain(domain.unknown)
    for number, device in enumerate(domain.devices):
        yield "" if number else "devices", device
    yield "vCPUs", str(domain.vcpus or "")
    yield "pinned", ", ".join(f"{pin.vcpu} to {pin.cpus}" for pin in domain.pins)
    yield "memory", format_size(domain.memory_bytes) if domain.memory_bytes else ""
    yield "host nodes", domain.nodes
    yield "guest nodes", str(domain.cells or "")


_DOMAIN, _VOLUMES = Column("DOMAIN"), Column("NEW VOLUMES")
_FLEET_COLUMNS = (Column("DEFINITION"), Column("THEN"), Column("DEVICES"))
_CHANGES = {"define": "is defined", "change": "changes", "undefine": "is removed", "none": "stays"}
_PASSWORD = re.compile(r"""(\spasswd=)(?:'[^'<>]*'|"[^"<>]*")""")
_POWERS = {"start": "is started", "stop": "is stopped", "none": ""}


def without_passwords(value: Any) -> Any:
    """Return a document with `***` for the passwords of displays: it goes to logs, and no plan in it is applied."""
    if isinstance(value, str):
        return _PASSWORD.sub(r"\1'***'", value)
    if isinstance(value, dict):
        return {key: without_passwords(item) for key, item in value.items()}
    return [*map(without_passwords, value)] if isinstance(value, list) else value


def fleet_page(fleet: FleetDocument, *, width: int) -> RenderableType:
    """Render a fleet as a table, for `width` columns."""
    has_volumes = any(domain.volumes for domain in fleet.domains)
    columns = (_DOMAIN, *([_VOLUMES] * has_volumes), *_FLEET_COLUMNS)
    rows = [
        (
            plain(domain.domain),
            *([" ".join(domain.volumes)] * has_volumes),
            *(_CHANGES[domain.change], _POWERS[domain.power], " ".join(domain.devices)),
        )
        for domain in fleet.domains
    ]
    title = Text(f"Fleet {plain(fleet.fleet)} at {plain(fleet.uri)}", style="bold")
    notes = [Text(f"- {plain(note)}") for domain in fleet.domains if domain.plan for note in domain.plan.notes]
    return Stack(title, *table(columns, rows, width), *notes)


_STYLES = {"error": "bold red", "warning": "yellow"}


def comparison_page(comparison: Comparison) -> RenderableType:
    """Render the values that differ, by path."""
    how = "as it runs" if comparison.running else "as it is defined"
    if not comparison.differences:
        return Text(f"Domain {comparison.name}, {how}, is what would be built for its devices.")
    lines: list[RenderableType] = [Text(f"Domain {comparison.name}, {how}:", style="bold")]
    for difference in comparison.differences:
        lines.append(Text(difference.path))
        lines.append(fact_grid([("  is", _value(difference.found)), ("  would be", _value(difference.built))]))
    return Stack(*lines)


def changes_page(changes: Sequence[Changed]) -> RenderableType:
    """Render what becomes of a definition."""
    return Stack(Text(), Text("In the definition", style="bold"), Padding.indent(fact_grid(changes), 2))


def _value(value: str | None) -> str:
    return "not there" if value is None else value or "there"


def findings_page(document: CheckDocument) -> RenderableType:
    """Each finding with its line, its path, its rule and its remedy, in the order of the document."""
    lines = [line for finding in document.findings for line in _finding_lines(finding)]
    return Stack(*lines, *([Text(_works(document))] if document.ok else []))


def _finding_lines(finding: Finding) -> Iterator[RenderableType]:
    where = f"line {finding.line}: " if finding.line is not None else ""
    head = Text(finding.severity.value, style=_STYLES[finding.severity], overflow="fold")
    yield head.append(f": {where}{finding.reason} [{finding.rule}]", style="not bold default")
    yield Whole(f"at {finding.path}")
    yield Whole(f"-> {finding.remedy}")


def _works(document: CheckDocument) -> str:
    against = "on this host" if document.host else "as far as the document shows"
    warnings = f", with {counted(len(document.findings), 'warning')}" if document.findings else ""
    return f"The domain would work {against}{warnings}."


def choices_page(choices: Sequence[Choice]) -> RenderableType:
    """Render the choices of a build, each with its reason, and at the end what is weaker."""
    return Stack(*(line for choice in choices for line in _choice_lines(choice)), *_weaker(choices))


def _choice_lines(choice: Choice) -> Iterator[RenderableType]:
    yield Text.assemble((f"{choice.what}:", "bold"), f" {choice.chosen}")
    for text in (choice.why, *(f"not {reason}" for reason in choice.excluded)):
        yield Padding(Text(text), (0, 0, 0, 2), expand=False)


def _weaker(choices: Sequence[Choice]) -> Iterator[RenderableType]:
    weaker = [f"{choice.what}: {choice.weaker}" for choice in choices if choice.weaker]
    if weaker:
        yield Text()
        yield Text("What is weaker than it could be", style="bold")
        yield from note_lines(weaker)
