"""Asks for a placement on a host: reads it, and places a request on what claims leave of it. May not write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from vfioctl.inventory.api import InventoryApi

if TYPE_CHECKING:
    from vfioctl.claims.model.capacity import Capacity
    from vfioctl.claims.model.placement import Placement
    from vfioctl.claims.model.request import ClaimRequest
    from vfioctl.claims.model.taken import Taken
    from vfioctl.inventory.model.functions import Inventory
    from vfioctl.inventory.model.values import Subject
    from vfioctl.session import Session

_CLAIMS = "claims"


def capacity_of(
    session: Session,
    taken: Taken | None = None,
    inventory: Inventory | None = None,
    *,
    links: bool = False,
    cpus: bool = True,
) -> Capacity:
    """Return what a host has for claims. `taken`: what live claims take of it; `links`, `cpus`: see `read_capacity`.

    Raises BadSpec for wrong settings.
    """
    settings = session.settings(_CLAIMS)
    inventory = inventory or InventoryApi(session).inventory()
    from vfioctl.claims.model.taken import Taken
    from vfioctl.claims.probe.capacity import read_capacity

    return read_capacity(session.kernel, inventory, taken or Taken(), settings, links=links, cpus=cpus)


def placement(
    session: Session,
    request: Callable[[Sequence[Subject]], ClaimRequest],
    devices: Sequence[str] = (),
    taken: Taken | None = None,
) -> tuple[Placement, Inventory]:
    """Return what a claim would get now, and the devices of the host.

    `request`: returns the request for the devices that `devices` name. Raises what `place` raises.
    """
    inventory = InventoryApi(session).inventory()
    wanted = request(subjects(inventory, devices))
    from vfioctl.claims.placement.placement import place

    capacity = capacity_of(session, taken, inventory, links=wanted.gpus > 1, cpus=wanted.cpus > 0)
    return place(wanted, capacity), inventory


def subjects(inventory: Inventory, names: Sequence[str]) -> tuple[Subject, ...]:
    """Return the devices that names mean: a UUID is that of a mediated device. Raises UnknownDevice, BadAddress."""
    from vfioctl.inventory.model.values import Uuid
    from vfioctl.kernel.places import UUID

    found: list[Subject] = []
    for name in names:
        found += [Uuid(name)] if UUID.fullmatch(name) else InventoryApi.chosen(inventory, [name])
    return tuple(dict.fromkeys(found))
