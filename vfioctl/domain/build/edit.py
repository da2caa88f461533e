"""Builds an existing domain anew: to change it, or to compare it. Reads the host, and may not write to it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vfioctl.claims.api import ClaimsApi
from vfioctl.claims.model.passthrough_devices import subject_of
from vfioctl.domain.build.build import DomainBuilder
from vfioctl.domain.build.build_options import completed, options_of
from vfioctl.domain.build.layout.cpus import even_width
from vfioctl.domain.build.other_domains import read_others
from vfioctl.domain.build.own_usage import with_own_usage
from vfioctl.domain.build.placing import relevant_nodes
from vfioctl.domain.document.differences import Difference, differences
from vfioctl.domain.document.reader import read_domain
from vfioctl.domain.document.xml import METADATA
from vfioctl.domain.model.build import ComparedValue, Comparison
from vfioctl.domain.probe.domains import Domains
from vfioctl.errors import BadSpec, ClaimConflict, NoCapacity

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from vfioctl.claims.model.claim import Claim
    from vfioctl.domain.build.build import Built
    from vfioctl.domain.document.reader import Domain
    from vfioctl.domain.model.libvirt import DomainXml
    from vfioctl.domain.model.other_domains import Others
    from vfioctl.domain.model.spec import DomainSpec
    from vfioctl.session import Session

_WHOLE = (
    *("/domain/cputune", "/domain/numatune", "/domain/memoryBacking/hugepages", "/domain/cpu/numa"),
    "/domain/devices/hostdev",
)
"""What is compared both ways; of all else only what would be built, because libvirt and users add more."""


def edited(
    session: Session, name: str, requested: Mapping[str, Any], file: Path | None = None, *, connect: str = ""
) -> Built:
    """Return an existing domain with the devices, CPUs and memory of a spec. See `DomainApi.edited`."""
    from vfioctl.domain.build.specs import content_of, spec_of
    from vfioctl.domain.check.checker import refuse_new_errors

    domains = Domains(session)
    domain = domains.find(name, connect).domain
    # with its passwords, which a listing does not have
    text = session.kernel.ask_libvirt(domains.uri(connect), "definition", domain.name) or domain.live
    content = content_of(file) if file else {}
    spec = spec_of({**requested, "name": domain.name}, content, file)
    others = with_own_usage(domain, read_others(session, domain.name, connect=connect))
    before, claims = read_domain(text), ClaimsApi(session)
    named = {*requested, *content}
    if spec.claim and claims.claim(spec.claim).hugepages:
        named.add("hugepages")
    spec = completed(spec, named, options_now(claims, before, spec.cpus))
    built = DomainBuilder(session).build(spec, others, before.document)
    refuse_new_errors(before.document, built.document)
    return built


def compared(session: Session, domain: DomainXml, others: Others) -> Comparison:
    """Return where a domain differs from what would be built.

    Raises BadSpec for one without devices of the host, ClaimConflict and NoCapacity if it could not be
    built now.
    """
    document = read_domain(domain.xml)
    if not document.host_devices:
        raise BadSpec(f"domain {domain.name} has no device of the host", hint="vfioctl domain edit gives it some")
    claims = ClaimsApi(session)
    spec = options_now(claims, document)
    if document.mark.claim in others.own and _has(claims.claim(document.mark.claim), document.host_devices):
        spec = replace(spec, claim=document.mark.claim, devices=())
    try:
        built = DomainBuilder(session).build(spec, with_own_usage(domain, others), document.document).document
    except (ClaimConflict, NoCapacity) as error:
        is_room = isinstance(error, NoCapacity)
        raise type(error)(
            f"domain {domain.name} cannot be compared, because it would not be built now: {error.message}",
            hint=error.hint if is_room else "vfioctl claim list shows who holds what",
            next_command=error.next_command if is_room else "",
            facts=error.facts,
        ) from None
    differing = [difference for difference in differences(document.document, built) if _counts(difference)]
    return Comparison(
        name=domain.name,
        running=bool(domain.live),
        differences=tuple(
            ComparedValue(path=difference.path, found=difference.before, built=difference.after)
            for difference in differing
        ),
    )


def options_now(claims: ClaimsApi, document: Domain, cpus: int = 0) -> DomainSpec:
    """Return the options that a domain was built with, without those of devices that it no longer has.

    `cpus`: the vCPUs that it is to have; 0 for those that it has.
    """
    spec = options_of(document, lambda: even_width(claims.capacity().topology), cpus)
    devices = [subject_of(name) for name in document.host_devices]
    return replace(spec, nodes=relevant_nodes(spec.nodes, devices, claims.capacity())) if spec.nodes else spec


def _has(claim: Claim, devices: Sequence[str]) -> bool:
    return {str(device.subject) for device in claim.devices}.issuperset(devices)


def _counts(difference: Difference) -> bool:
    """Whether a difference says something: not what libvirt or a user has added elsewhere."""
    if METADATA in difference.path or "/metadata" in difference.path:
        return False
    if difference.path.endswith("/@managed") and difference.before == "no" and difference.after is None:
        return False  # libvirt says it of mediated devices too
    return difference.after is not None or difference.path.startswith(_WHOLE)
