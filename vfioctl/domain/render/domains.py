"""Renders libvirt's domains: a table, one domain whole, both as documents, and a fleet. May not read the host."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.text import Text

from vfioctl.console.columns import Column, fact_grid, table
from vfioctl.console.words import plain
from vfioctl.domain.model.listing import DomainListDocument, DomainPin, DomainShowDocument, ListedDomain
from vfioctl.units import format_cpu_list, format_size

if TYPE_CHECKING:
    from vfioctl.domain.model.fleet import FleetDocument
    from vfioctl.domain.model.libvirt import Libvirt
    from vfioctl.domain.probe.domains import Known

Held = Mapping[str, Sequence[str]]
"""The ids of the claims that domains hold, by the domain's name."""
NONE: Held = {}
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
_STATES = {
    "running": "running",
    "defined": "defined, not running",
    "transient": "running, and gone when it stops",
}


def domains_table(known: Sequence[Known], held: Held = NONE, *, width: int) -> RenderableType:
    """Render domains in the order given, for `width` columns."""
    return Stack(*table(_COLUMNS, [_row(domain, held) for domain in known], width))


def _row(known: Known, held: Held) -> tuple[str, ...]:
    domain = listed(known, held)
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


def domain_page(known: Known, held: Held = NONE) -> RenderableType:
    """Render one domain."""
    domain = listed(known, held)
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


def listed(known: Known, held: Held = NONE) -> ListedDomain:
    """Return a domain as `list --json` has it. `held`: the claims of domains; one that runs shows all of its own."""
    domain, says, unknown = known
    claims = held.get(domain.name, ()) if domain.is_active else ()
    named = says.mark.claim if says else ""
    pins = sorted(says.pins.items()) if says else ()
    return ListedDomain(
        name=domain.name,
        uuid=domain.uuid,
        state=domain.state,
        ours=bool(says and says.mark.is_own),
        claim=" ".join(dict.fromkeys(filter(None, (named, *claims)))),
        template=says.mark.template if says else "",
        devices=says.host_devices if says else (),
        vcpus=(says.vcpus or 0) if says else 0,
        memory_bytes=(says.memory or 0) if says else 0,
        cells=len(says.cells) if says else 0,
        nodes=format_cpu_list(says.host_nodes) if says else "",
        pins=tuple(DomainPin(vcpu=vcpu, cpus=format_cpu_list(cpus)) for vcpu, cpus in pins),
        unknown=unknown,
    )


def list_document(libvirt: Libvirt, known: Sequence[Known], held: Held = NONE) -> DomainListDocument:
    """Return the document of `list --json`."""
    domains = tuple(listed(domain, held) for domain in known)
    return DomainListDocument(uri=libvirt.uri, libvirt=libvirt.version, hypervisor=libvirt.hypervisor, domains=domains)


def show_document(known: Known, held: Held = NONE) -> DomainShowDocument:
    """Return the document of `show --json`."""
    return DomainShowDocument(domain=listed(known, held), live=known.domain.live, defined=known.domain.defined)


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
