"""Reads what the other domains of libvirt have, which a build leaves to them. May not write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vfioctl.domain.model.libvirt import URI, known_as
from vfioctl.domain.model.other_domains import NOBODY, Others
from vfioctl.domain.probe.domains import Domains
from vfioctl.kernel.libvirt.domains import SOCKETS

if TYPE_CHECKING:
    from vfioctl.session import Session


def read_others(session: Session, *without: str, connect: str = "") -> Others:
    """Return what the domains of libvirt have, except the named ones; nothing where no libvirt runs."""
    uri = Domains(session).uri(connect)
    if uri == URI and not connect and not any(map(session.kernel.has, SOCKETS)):
        return NOBODY
    from vfioctl.claims.api import ClaimsApi
    from vfioctl.domain.document.other_domains import others_in
    from vfioctl.domain.probe.domains import read_libvirt
    from vfioctl.inventory.api import InventoryApi

    owners = {f"vm/{name}" for name in without}
    online = InventoryApi(session).online_cpus()
    others = others_in(read_libvirt(session.kernel, uri), online, but=without)
    claims = ClaimsApi(session).claims()
    own = (claim.id for claim in claims if claim.owner in owners and claim.is_of(claim.owner, known_as(uri)))
    return others._replace(own=tuple(own))
