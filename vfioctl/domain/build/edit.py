"""Builds an existing domain anew, to change or to compare it. Reads the host, and may not write to it. What was asked
for otherwise than by default is in the metadata if vfioctl built the domain; else it is what its document looks like.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from vfioctl.claims.api import ClaimsApi
from vfioctl.claims.model.passthrough_devices import subject_of
from vfioctl.domain.build.build import Built, DomainBuilder
from vfioctl.domain.build.layout.cpus import even_width
from vfioctl.domain.build.layout.memory import SIZES
from vfioctl.domain.build.placing import read_others, relevant_nodes, with_own_usage
from vfioctl.domain.document.differences import Difference, differences
from vfioctl.domain.document.reader import Domain, read_domain
from vfioctl.domain.document.values import scaled
from vfioctl.domain.document.xml import METADATA
from vfioctl.domain.model.build import ComparedValue, Comparison
from vfioctl.domain.model.libvirt import DomainXml, Others
from vfioctl.domain.model.spec import DomainSpec, PageSize, Policy, Smt
from vfioctl.domain.probe.domains import Domains
from vfioctl.errors import BadAddress, BadSpec, ClaimConflict, NoCapacity
from vfioctl.inventory.model.values import PciAddress
from vfioctl.session import Session

_Word = TypeVar("_Word", bound=StrEnum)
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
    if "hugepages" not in named:
        _refuse_lost_hugepages(before, built)
    refuse_new_errors(before.document, built.document)
    return built


def _refuse_lost_hugepages(before: Domain, built: Built) -> None:
    """Raise NoCapacity if a domain that was not built here would lose its hugepages: somebody asked for them."""
    had = before.one("memoryBacking/hugepages") is not None and not before.mark.template
    is_confidential = before.one("launchSecurity") is not None
    if had and not is_confidential and built.layout.page_size is None and built.spec.policy is Policy.STRICT:
        hint = "reserve more of them, or say --hugepages none to give it ordinary pages"
        raise NoCapacity(f"domain {before.name} has hugepages, and the nodes have too few that are free", hint=hint)


def compared(session: Session, domain: DomainXml, others: Others) -> Comparison:
    """Return where a domain is not as it would be built. Raises BadSpec without devices, ClaimConflict, NoCapacity."""
    document = read_domain(domain.xml)
    if not document.host_devices:
        raise BadSpec(f"domain {domain.name} has no device of the host", hint="vfioctl domain edit gives it some")
    claims = ClaimsApi(session)
    spec = options_now(claims, document)
    if document.mark.claim in others.own:
        claimed = {str(device.subject) for device in claims.claim(document.mark.claim).devices}
        if claimed.issuperset(document.host_devices):
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
    differing = tuple(
        ComparedValue(path=difference.path, found=difference.before, built=difference.after)
        for difference in differences(document.document, built)
        if _counts(difference)
    )
    return Comparison(name=domain.name, running=bool(domain.live), differences=differing)


def options_now(claims: ClaimsApi, document: Domain, cpus: int = 0) -> DomainSpec:
    """Return the options that a domain was built with, without those of devices that it no longer has. `cpus`: the
    vCPUs that it is to have; 0 for those that it has."""
    spec = options_of(document, lambda: even_width(claims.capacity().topology), cpus)
    devices = [subject_of(name) for name in document.host_devices]
    return replace(spec, nodes=relevant_nodes(spec.nodes, devices, claims.capacity())) if spec.nodes else spec


def _counts(difference: Difference) -> bool:
    """Whether a difference says something: not what libvirt or a user has added elsewhere."""
    if METADATA in difference.path or "/metadata" in difference.path:
        return False
    if difference.path.endswith("/@managed") and difference.before == "no" and difference.after is None:
        return False  # libvirt says it of mediated devices too
    return difference.after is not None or difference.path.startswith(_WHOLE)


def options_of(domain: Domain, width: Callable[[], int], cpus: int = 0) -> DomainSpec:
    """Return the spec of a domain as it is. `width`: threads of a core of the host. `cpus`: as for `options_now`."""
    options, is_built = dict(domain.mark.options), bool(domain.mark.template)
    vcpus = 0 if domain.one("vcpu") is None else domain.vcpus or 0
    return DomainSpec(
        name=domain.name,
        devices=domain.host_devices,
        cpus=vcpus,
        memory=(domain.memory or 0) >> 20 << 20,
        nodes=dict(_nodes(options.get("nodes", ""))),
        hugepages=_word(options.get("hugepages"), PageSize.AUTO if is_built else _pages(domain)),
        policy=_word(options.get("policy"), Policy.STRICT if is_built else _policy(domain)),
        smt=_word(options.get("smt"), Smt.TOGETHER if is_built else _smt((vcpus, cpus or vcpus), domain, width)),
    )


def completed(asked: DomainSpec, named: Collection[str], had: DomainSpec) -> DomainSpec:
    """Return the spec of an edit: what it does not name is as the domain has it. A claim brings its CPUs and memory."""
    kept = {name: getattr(had, name) for name in ("hugepages", "policy", "smt") if name not in named}
    if not asked.claim:
        kept |= {"cpus": asked.cpus or had.cpus, "memory": asked.memory or had.memory}
    return replace(asked, **kept, nodes={**had.nodes, **asked.nodes})


def _word(text: str | None, otherwise: _Word) -> _Word:
    """Return the value of a text that may come from anybody."""
    return next((member for member in type(otherwise) if member == text), otherwise)


def _nodes(text: str) -> Iterator[tuple[PciAddress, int]]:
    for part in text.split(",") if text else ():
        device, _, node = part.partition("=")
        if node.isascii() and node.isdecimal() and len(node) < 5:
            try:
                yield PciAddress(device), int(node)
            except BadAddress:
                continue


def _pages(domain: Domain) -> PageSize:
    """Return the size that all pages have; AUTO if they have several, or one that no option names."""
    if domain.one("memoryBacking/hugepages") is None:
        return PageSize.NONE
    pages = {scaled(page.get("size"), page.get("unit")) for page in domain.all("memoryBacking/hugepages/page")}
    return next((name for name, size in SIZES.items() if pages == {size}), PageSize.AUTO)


def _policy(domain: Domain) -> Policy:
    preferred = any(memnode.get("mode") == "preferred" for memnode in domain.all("numatune/*"))
    return Policy.PREFERRED if preferred else Policy.STRICT


def _smt(vcpus: Sequence[int], domain: Domain, width: Callable[[], int]) -> Smt:
    """A guest without threads has cores of its own; so has one whose vCPUs fill no cores, neither now nor then."""
    topology = domain.one("cpu/topology")
    without = topology is not None and topology.get("threads", "1") == "1"
    if not (without or all(number % 2 for number in vcpus)):
        return Smt.TOGETHER
    threads = width()
    isolates = threads > 1 and (without or all(number % threads for number in vcpus))
    return Smt.ISOLATE if isolates else Smt.TOGETHER
