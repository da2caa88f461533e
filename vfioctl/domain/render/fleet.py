"""Renders what applying a fleet does, or would do. May not read the host."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.text import Text

from vfioctl.console.columns import Column, table
from vfioctl.console.words import plain

if TYPE_CHECKING:
    from vfioctl.domain.model.fleet import FleetDocument

_DOMAIN, _VOLUMES = Column("DOMAIN"), Column("NEW VOLUMES")
_COLUMNS = (Column("DEFINITION"), Column("THEN"), Column("DEVICES"))
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
    columns = (_DOMAIN, *([_VOLUMES] * has_volumes), *_COLUMNS)
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
