"""Compares a domain with what would be built for its devices. Reads the host, and may not write to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vfioctl.domain.building import Building
from vfioctl.domain.definition import read_definition
from vfioctl.domain.differences import Difference, differences
from vfioctl.domain.model.comparison import ComparedValue, Comparison
from vfioctl.domain.model.spec import DomainSpec, PageSize, Policy
from vfioctl.domain.xml import METADATA, parse
from vfioctl.errors import BadSpec

if TYPE_CHECKING:
    from vfioctl.domain.model.libvirt import DomainXml
    from vfioctl.domain.model.others import Others
    from vfioctl.session import Session

_WHOLE = (
    *("/domain/cputune", "/domain/numatune", "/domain/memoryBacking/hugepages", "/domain/cpu/numa"),
    "/domain/devices/hostdev",
)
"""What is compared both ways; of all else only what would be built, because libvirt and users add more."""


def compared(session: Session, domain: DomainXml, others: Others) -> Comparison:
    """Return where a domain differs. Raises BadSpec for one without devices of the host."""
    document = parse(domain.xml)
    says = read_definition(domain.xml)
    if not says.devices:
        raise BadSpec(f"domain {domain.name} has no device of the host", hint="vfioctl domain edit gives it some")
    pages = PageSize.NONE if document.root.find("memoryBacking/hugepages") is None else PageSize.AUTO
    spec = DomainSpec(
        name=domain.name,
        devices=says.devices,
        cpus=says.vcpus,
        memory=says.memory >> 20 << 20,
        hugepages=pages,
        policy=Policy.PREFERRED,
    )
    built = Building(session).build(spec, others, document).document
    found = [each for each in differences(document, built) if _counts(each)]
    return Comparison(
        name=domain.name,
        running=bool(domain.live),
        differences=tuple(ComparedValue(path=each.path, found=each.before, built=each.after) for each in found),
    )


def _counts(difference: Difference) -> bool:
    """Whether a difference says something: not what libvirt or a user has added elsewhere."""
    if METADATA in difference.path or "/metadata" in difference.path:
        return False
    return difference.after is not None or difference.path.startswith(_WHOLE)
