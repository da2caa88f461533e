"""Checks a domain's XML, by itself and against a host. Reads the host and the ledger, and may not write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from vfioctl.domain.check.libvirt import NOT_ASKED, Asked
from vfioctl.domain.check.rules.check import check
from vfioctl.domain.check.rules.host import HostFacts
from vfioctl.domain.check.rules.host_devices import named_functions, named_mdevs
from vfioctl.domain.document.memory import needs_default_page
from vfioctl.domain.document.reader import Domain
from vfioctl.domain.document.xml import parse
from vfioctl.domain.model.finding import CheckDocument, Severity
from vfioctl.errors import BadDocument, BadSpec, StoreDamaged
from vfioctl.kernel.lenient import names_in, number_in, text_of

if TYPE_CHECKING:
    from vfioctl.domain.document.xml import Document
    from vfioctl.domain.model.libvirt import Libvirt
    from vfioctl.inventory.model.holders import Holder
    from vfioctl.kernel.protocol import FileReader
    from vfioctl.placement.model.capacity import Capacity
    from vfioctl.session import Session

_MDEVS = "/sys/bus/mdev/devices"


def judged(
    session: Session | None, text: str | bytes, version: tuple[int, ...] | None, asked: Asked = NOT_ASKED
) -> CheckDocument:
    """Return what is wrong with a domain's XML, against a session's host if one is given. Raises BadDocument.

    `asked`: what libvirt says of it.
    """
    document = parse(text)
    name = (document.root.findtext("name") or "").strip()
    host = _Look(session, Domain(document), name).facts(asked.libvirt) if session else None
    all_findings = check(document, version=version or asked.version, host=host.facts if host else None)
    findings = (*all_findings, *asked.findings)
    return CheckDocument(
        ok=not any(finding.severity is Severity.ERROR for finding in findings),
        domain=name or None,
        host=session is not None,
        findings=findings,
        unknown=(*asked.unknown, *(host.unknown if host else ())),
    )


def refuse_new_errors(before: Document, after: Document) -> None:
    """Raise BadDocument if there are errors in a document that were not in it before, by itself and without a host."""
    known = Counter(finding.rule for finding in check(before) if finding.severity is Severity.ERROR)
    for finding in check(after):
        if finding.severity is Severity.ERROR:
            known[finding.rule] -= 1
            if known[finding.rule] < 0:
                raise BadDocument(f"the domain would not work: {finding.path}: {finding.reason}", hint=finding.remedy)


class _Seen(NamedTuple):
    facts: HostFacts
    unknown: tuple[str, ...]
    """What could not be judged, and why."""


class _Look:
    """One look at a host, for one domain."""

    def __init__(self, session: Session, domain: Domain, name: str) -> None:
        self._session, self._domain, self._name = session, domain, name
        self._unknown: list[str] = []

    def facts(self, libvirt: Libvirt | None) -> _Seen:
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
        self._unknown += [f"device {address}: it could not be read" for address in sorted(unread)]
        if needs_default_page(self._domain) and facts.huge_page is None:
            self._unknown.append("hugepages: the host does not report the default page size")
        return _Seen(facts, (*self._unknown, *_untold(facts)))

    def _capacity(self) -> Capacity:
        from vfioctl.claims.api import ClaimsApi

        claims = ClaimsApi(self._session)
        try:
            return claims.capacity()
        except StoreDamaged as error:
            self._unknown.append(f"claims: {error.message}")
            return claims.capacity(ledger=False)

    def _holders(self, capacity: Capacity) -> list[Holder]:
        """Who has the domain's devices open: all processes are looked at, but only if the host has a device."""
        from vfioctl.inventory.api import InventoryApi
        from vfioctl.inventory.model.holders import HolderKind
        from vfioctl.units import Uuid

        inventory = capacity.inventory
        functions = [
            inventory.by_address[address]
            for _, address in named_functions(self._domain)
            if address in inventory.by_address
        ]
        mdevs = []
        for _, text in named_mdevs(self._domain):
            try:
                mdevs.append(Uuid(text))
            except BadSpec:  # a rule of the document tells
                continue
        if not functions and not mdevs:
            return []
        api = InventoryApi(self._session)
        processes = api.processes()
        looks = [api.holders_of(functions, inventory, processes)] if functions else []
        looks += [api.holders_of_mdevs(mdevs, processes)] if mdevs else []
        for look in looks:
            if why := look.unknown or look.hidden:
                self._unknown.append(f"who uses the devices: {why}")
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
    """What the host does not report, so that no rule can check it."""
    unknown = [f"{what}: {why}" for what, why in facts.capacity.topology.unknown.items()]
    if not facts.cpus:
        unknown.append("CPUs: the host does not report which are online")
    if not facts.nodes:
        unknown.append("NUMA nodes: the host does not report any")
    return unknown


def _words(holders: list[Holder]) -> Mapping[str, str]:
    """Who has each device, in words; the first of several."""
    words: dict[str, str] = {}
    for holder in holders:
        who = f"guest {holder.guest}" if holder.guest else f"{holder.kind} {holder.name}".strip()
        words.setdefault(holder.address, f"{who}{f' (pid {holder.pid})' if holder.pid else ''}")
    return words
