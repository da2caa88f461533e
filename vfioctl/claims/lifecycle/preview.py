"""Says what creating or releasing a claim would do, and refuses what would be refused. Reads the host and the ledger.

May not write to either.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from vfioctl.claims.ledger.rows import CLAIM
from vfioctl.claims.lifecycle.device_plans import plan_needed, plan_undo
from vfioctl.claims.lifecycle.drafting import draft
from vfioctl.inventory.api import InventoryApi, Waiting, until_released
from vfioctl.placement.api import PlacementApi
from vfioctl.placement.model.placement import Placement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vfioctl.claims.ledger.ledger import ClaimLedger
    from vfioctl.claims.lifecycle.liveness import Liveness
    from vfioctl.claims.model.claim import Claim
    from vfioctl.core.change import Plan
    from vfioctl.inventory.model.functions import Inventory
    from vfioctl.placement.model.request import ClaimRequest
    from vfioctl.session import Session


class Preview(NamedTuple):
    """What a request would get on a host, and the plan that would be applied; None if nothing has to be changed."""

    placement: Placement
    inventory: Inventory
    plan: Plan | None = None
    claim: Claim | None = None
    """The claim that the request's key has already, which would be returned."""


class Previews:
    """What `ClaimsApi` would do with the claims of one host."""

    def __init__(self, session: Session, ledger: ClaimLedger, liveness: Liveness) -> None:
        self._session, self._ledger, self._liveness = session, ledger, liveness

    def create(self, request: ClaimRequest, key: str = "", *, over: Sequence[Claim] = ()) -> Preview:
        """Return what creating a claim would do; see `ClaimsApi.preview_create`."""
        known = self._liveness.known(key, request.canonical()) if key else None
        dead = (known.id,) if known and self._liveness.has_died(known) else ()
        if known and not dead:
            return self._again(known)
        taken = self._ledger.taken(but=(*dead, *(claim.id for claim in over)))
        capacity = PlacementApi(self._session).read(request, taken)
        drafted = draft(request, capacity, taken)
        subjects = {device.subject for device in drafted.claim.devices}
        released = (claim.id for claim in over if not subjects.isdisjoint(device.subject for device in claim.devices))
        before = (*dead, *released)
        session = self._session.acting_for(f"{CLAIM}{before[0]}") if before else self._session
        plan = plan_needed(session, drafted.claim, capacity, bind=request.bind)
        return Preview(drafted.placement, capacity.inventory, plan if plan and not plan.nothing_to_do else None)

    def _again(self, claim: Claim) -> Preview:
        inventory = InventoryApi(self._session).inventory(nvml=False)
        devices = tuple(device.subject for device in claim.devices if device.asked)
        ours = {device.address for device in claim.devices}
        nodes = {f.numa_node for f in inventory.functions if f.address in ours and f.numa_node is not None}
        why = (f"claim {claim.id} was made for this request and key already: it is {claim.state}",)
        return Preview(
            Placement(devices, claim.cpus, claim.hugepages, tuple(sorted(nodes)), why), inventory, claim=claim
        )

    def release(self, claim: Claim, *, wait: float = 0.0, waiting: Waiting | None = None) -> Plan | None:
        """Return the plan that puts back a claim's devices; None if nothing has to be changed for its release.

        Raises DeviceInUse, Unfinished.
        """
        claim = self._liveness.settled(claim)
        if not claim.is_live or self._liveness.has_died(claim):
            return None
        session = self._session.acting_for(f"{CLAIM}{claim.id}")
        plan = until_released(partial(plan_undo, session, claim), wait=wait, waiting=waiting)
        return plan if plan and not plan.nothing_to_do else None
