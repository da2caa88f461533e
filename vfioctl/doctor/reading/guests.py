"""Adds the guests that are planned to the facts: those of libvirt, of claims, and who may start one without libvirt.
May not write to the host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from vfioctl.claims.api import ClaimsApi
from vfioctl.claims.model.access import ACCESS, labelled_access
from vfioctl.domain.model.libvirt import is_elsewhere
from vfioctl.domain.model.planned import PlannedGuest
from vfioctl.errors import BadSpec, VfioctlError
from vfioctl.kernel.libvirt.domains import SOCKETS

if TYPE_CHECKING:
    from vfioctl.claims.model.claim import Claim
    from vfioctl.doctor.model.facts import Facts, LockLimit
    from vfioctl.session import Session


def with_guests(session: Session, facts: Facts, claims: Sequence[Claim]) -> Facts:
    """Return the facts with the planned guests, and with libvirt's versions. libvirt is asked only where it could give
    something to a guest: that takes long."""
    labelled = _labelled(session)
    facts = replace(
        facts,
        guests=tuple(_of_claims(claims)),
        lock_limits=tuple(_lock_limits(session, labelled)),
        iommufd_claims=tuple(claim.id for claim in labelled if _has_cdev(session, facts, claim)),
        labels_hidden=ClaimsApi(session).hides_labels(claims),
    )
    wanted = bool(claims) or any(function.serves_guests for function in facts.devices)
    try:
        if not wanted or not _has_libvirt(session):
            return facts
        from vfioctl.domain.api import DomainApi

        libvirt, guests = DomainApi(session).planned()
    except VfioctlError as error:  # of the configuration
        from vfioctl.domain.model.libvirt import URI, Libvirt

        return replace(facts, libvirt=Libvirt(uri=URI, unknown=error.message))
    return replace(facts, libvirt=libvirt, guests=(*guests, *facts.guests))


def _has_libvirt(session: Session) -> bool:
    """Return whether there is a libvirt to ask on this host: a daemon's, or one that the configuration names."""
    uri = str(session.settings("domain").connect)
    return not is_elsewhere(uri) and (any(map(session.kernel.has, SOCKETS)) or not uri.startswith("qemu:"))


def _of_claims(claims: Iterable[Claim]) -> Iterator[PlannedGuest]:
    for claim in claims:
        if memory := _memory(claim):
            yield PlannedGuest(memory, claim=claim.id)


def _memory(claim: Claim) -> int:
    """Return the bytes of its hugepages: no claim has other memory."""
    return sum(pages.size * pages.pages for pages in claim.hugepages)


def _labelled(session: Session) -> Sequence[Claim]:
    """Return the claims whose nodes a user or a group may open."""
    try:
        return ClaimsApi(session).labelled(ACCESS)
    except (VfioctlError, OSError):  # the check of claims says so
        return ()


def _has_cdev(session: Session, facts: Facts, claim: Claim) -> bool:
    known = facts.inventory.by_address
    if any(known[address].vfio_cdev for address in claim.functions if address in known):
        return True
    return bool(claim.mdevs) and any(nodes.cdev for nodes in ClaimsApi(session).nodes(claim).values())


def _lock_limits(session: Session, claims: Sequence[Claim]) -> Iterator[LockLimit]:
    if not claims:
        return
    from vfioctl.doctor.probe.lock_limits import LimitFiles

    files = LimitFiles(session.kernel)
    for claim in claims:
        try:
            access = labelled_access(claim.labels[ACCESS])
        except BadSpec:
            continue
        yield files.limit_of(claim.id, access, _memory(claim) or None)
