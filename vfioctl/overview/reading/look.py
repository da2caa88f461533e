"""Reads a whole host. May not write to it."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from vfioctl.core.rollback import now
from vfioctl.overview.model.overview import Overview, Part
from vfioctl.overview.reading.parts import Parts, scope_of_gpus

if TYPE_CHECKING:
    from vfioctl.session import Session


def look(session: Session, without: Collection[Part] = ()) -> Overview:
    """Return the host as it is now, but for the parts in `without`."""
    parts, at = Parts(session, without), now()
    with ThreadPoolExecutor(1) as beside:
        # a process of its own asks libvirt: it may take as long as all others
        domains = beside.submit(parts.domains)
        processes = None if Part.HOLDERS in without else parts.devices.processes()
        inventory, vgpus = parts.devices.inventory(), parts.vgpus()
        return Overview(
            at=at,
            inventory=inventory,
            claims=parts.claims(),
            vgpus=vgpus,
            holders=parts.holders(scope_of_gpus(inventory), inventory, vgpus, processes),
            unfinished=parts.unfinished(),
            usage=parts.usage([gpu.address for gpu in inventory.gpus]),
            domains=domains.result(),
            read_only=session.why_read_only(),
            missing=parts.missing,
            without=frozenset(without),
        )
