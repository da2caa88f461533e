"""Checks a domain's XML by itself, against a host, and by asking libvirt. Reads only, and changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from vfioctl.domain.check.rules.check import check
from vfioctl.domain.check.rules.host_devices import named_functions, named_mdevs
from vfioctl.domain.check.rules.rule import HostFacts
from vfioctl.domain.document.needs import needs_default_page
from vfioctl.domain.document.reader import Domain
from vfioctl.domain.document.xml import parse
from vfioctl.domain.document.xml import text_of as written
from vfioctl.domain.model.finding import CheckDocument, Finding, Severity
from vfioctl.domain.model.libvirt import is_elsewhere
from vfioctl.domain.model.versions import version_of
from vfioctl.domain.probe.domains import read_libvirt, to_native, validate
from vfioctl.errors import BadDocument, BadSpec, HostError, RequestError, StoreDamaged, UnknownDomain
from vfioctl.kernel.lenient import names_in, number_in, text_of

if TYPE_CHECKING:
    from vfioctl.domain.document.xml import Document
    from vfioctl.domain.model.libvirt import Libvirt
    from vfioctl.inventory.model.holders import Holder
    from vfioctl.kernel.protocol import FileReader, Reader
    from vfioctl.placement.model.capacity import Capacity
    from vfioctl.session import Session

_MDEVS = "/sys/bus/mdev/devices"
_NO_VFIO = "passthrough type 'default'"
"""What libvirt says on a host without VFIO of a device that does not name its driver."""


class Asked(NamedTuple):
    """What libvirt says."""

    version: tuple[int, ...] | None = None
    """None if it cannot be asked."""
    findings: tuple[Finding, ...] = ()
    unknown: tuple[str, ...] = ()
    libvirt: Libvirt | None = None
    """It and its domains; None if it cannot be asked, or is on another machine."""


NOT_ASKED = Asked()


def judged(
    session: Session | None, text: str | bytes, version: tuple[int, ...] | None, asked: Asked = NOT_ASKED
) -> CheckDocument:
    """Return what is wrong with a domain's XML, also on a session's host, and what libvirt says. Raises BadDocument."""
    document = parse(text)
    name = (document.root.findtext("name") or "").strip()
    look = _Look(session, Domain(document), name) if session else None
    host = look.facts(asked.libvirt) if look else None
    findings = (*check(document, version=version or asked.version, host=host), *asked.findings)
    return CheckDocument(
        ok=not any(finding.severity is Severity.ERROR for finding in findings),
        domain=name or None,
        host=session is not None,
        findings=findings,
        unknown=(*asked.unknown, *(look.unknown if look else ())),
    )


def refuse_new_errors(before: Document, after: Document) -> None:
    """Raise BadDocument if there are errors in a document that were not in it before, by itself and without a host."""
    known = Counter(finding.rule for finding in check(before) if finding.severity is Severity.ERROR)
    for finding in check(after):
        if finding.severity is Severity.ERROR:
            known[finding.rule] -= 1
            if known[finding.rule] < 0:
                raise BadDocument(f"the domain would not work: {finding.path}: {finding.reason}", hint=finding.remedy)


class _Look:
    """One look at a host, for one domain. `unknown`: what could not be judged, and why."""

    def __init__(self, session: Session, domain: Domain, name: str) -> None:
        self._session, self._domain, self._name = session, domain, name
        self.unknown: list[str] = []

    def facts(self, libvirt: Libvirt | None) -> HostFacts:
        from vfioctl.domain.document.other_domains import others_in
        from vfioctl.domain.probe.images import compared_images
        from vfioctl.inventory.api import InventoryApi

        capacity = self._capacity()
        holders = self._holders(capacity)
        own = [holder for holder in holders if holder.guest == self._name]
        facts = HostFacts(
            capacity=capacity,
            processor=InventoryApi(self._session).processor(),
            mdevs=frozenset(names_in(self._session.kernel, _MDEVS)),
            holders=_words([holder for holder in holders if holder not in own]),
            default_page=_default_page(self._session.kernel),
            runs=bool(own),
        )
        if libvirt:
            others = others_in(libvirt, facts.cpus, but=(self._name,))
            compared = compared_images(self._session.kernel, self._domain, others.images)
            facts = replace(facts, pinned=others.cpus, images=compared.shared, unread_images=compared.unread)
        unread = set(capacity.inventory.unread).intersection(address for _, address in named_functions(self._domain))
        self.unknown += [f"device {address}: it could not be read" for address in sorted(unread)]
        if needs_default_page(self._domain) and facts.huge_page is None:
            self.unknown.append("hugepages: the host does not report the default page size")
        self.unknown += _untold(facts)
        return facts

    def _capacity(self) -> Capacity:
        from vfioctl.claims.api import ClaimsApi

        claims = ClaimsApi(self._session)
        try:
            return claims.capacity()
        except StoreDamaged as error:
            self.unknown.append(f"claims: {error.message}")
            return claims.capacity(ledger=False)

    def _holders(self, capacity: Capacity) -> list[Holder]:
        """Who has the domain's devices open: all processes are looked at, but only if the host has a device."""
        from vfioctl.inventory.api import InventoryApi
        from vfioctl.inventory.model.holders import HolderKind
        from vfioctl.units import Uuid

        known = capacity.inventory.by_address
        functions = [known[address] for _, address in named_functions(self._domain) if address in known]
        mdevs = []
        for _, text in named_mdevs(self._domain):
            with suppress(BadSpec):  # a rule of the document tells
                mdevs.append(Uuid(text))
        if not functions and not mdevs:
            return []
        api = InventoryApi(self._session)
        processes = api.processes()
        looks = [api.holders_of(functions, capacity.inventory, processes)] if functions else []
        looks += [api.holders_of_mdevs(mdevs, processes)] if mdevs else []
        for look in looks:
            if why := look.unknown or look.hidden:
                self.unknown.append(f"who uses the devices: {why}")
        # a vGPU on a VF is what the domain is to have
        return [holder for look in looks for holder in look.refusing if holder.kind is not HolderKind.VGPU]


def _default_page(kernel: FileReader) -> int | None:
    """Bytes of a hugepage where no size is named, from /proc/meminfo (Documentation/filesystems/proc.rst)."""
    for line in text_of(kernel, "/proc/meminfo").splitlines():
        if line.startswith("Hugepagesize:"):
            size = number_in(line.removeprefix("Hugepagesize:").removesuffix("kB"))
            return size * 1024 if size else None
    return None


def _untold(facts: HostFacts) -> list[str]:
    unknown = [f"{what}: {why}" for what, why in facts.capacity.topology.unknown.items()]
    if not facts.cpus:
        unknown.append("CPUs: the host does not report which are online")
    if not facts.nodes:
        unknown.append("NUMA nodes: the host does not report any")
    return unknown


def _words(holders: list[Holder]) -> Mapping[str, str]:
    words: dict[str, str] = {}
    for holder in holders:
        who = f"guest {holder.guest}" if holder.guest else f"{holder.kind} {holder.name}".strip()
        words.setdefault(holder.address, f"{who}{f' (pid {holder.pid})' if holder.pid else ''}")
    return words


def ask(kernel: Reader, uri: str, given: str | bytes) -> Asked:
    """Return libvirt's version, and why it refuses the document. What cannot be asked is unknown. Raises BadDocument.
    It gets the document as it is, or in libvirt's own form if that is not in UTF-8."""
    document = parse(given)
    try:
        text = given if isinstance(given, str) else given.decode()
    except UnicodeDecodeError:
        text = written(document)
    libvirt = read_libvirt(kernel, uri)
    if libvirt.unknown:
        return Asked(None, (), (f"libvirt: {libvirt.unknown}",))
    findings, unknown = [], []
    for rule, question in (("libvirt", validate), ("libvirt-qemu", to_native)):
        try:
            question(kernel, uri, text)
        except BadDocument as error:
            findings.append(_finding(rule, error.kernel_said or error.message))
            break  # what does not pass the one is not worth the other
        except (HostError, RequestError) as error:
            unknown.append(f"{error.message}: {error.kernel_said or error.hint}".rstrip(": "))
    here = None if is_elsewhere(uri) else libvirt
    return Asked(version_of(libvirt.version), tuple(findings), tuple(unknown), here)


def defined(kernel: Reader, uri: str, name: str) -> str:
    """Return the XML of a domain that libvirt has, as it runs or is defined. Raises UnknownDomain, HostError."""
    libvirt = read_libvirt(kernel, uri)
    if libvirt.unknown:
        raise HostError(f"{name} is no file, and libvirt cannot be asked for it: {libvirt.unknown}")
    libvirt_domain = libvirt.find(name)
    if libvirt_domain is None:
        raise UnknownDomain(f"{name} is no file, and no domain of {uri}", next_command="vfioctl domain list")
    return libvirt_domain.xml


def _finding(rule: str, said: str) -> Finding:
    severity, remedy = Severity.ERROR, "what libvirt says; see its formatdomain page"
    if _NO_VFIO in said:
        severity, remedy = Severity.WARNING, "name='vfio' in the <driver> of each hostdev"
    reason = f"libvirt refuses it: {' '.join(said.split())}"
    return Finding(rule=rule, severity=severity, path="/domain", line=None, reason=reason, remedy=remedy)
