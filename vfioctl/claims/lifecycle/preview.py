"""Says what creating or releasing a claim would do, and refuses what would be refused. Reads the host and the ledger.

May not write to either.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from vfioctl.claims.ledger.rows import CLAIM
from vfioctl.claims.lifecycle.device_plans import plan_needed, plan_undo
from vfioctl.claims.lifecycle.selection import AS_TOLD, NOTHING_HELD, NOTHING_PINNED, Choosing
from vfioctl.claims.lifecycle.timestamps import after, moment_of
from vfioctl.inventory.api import InventoryApi, Waiting, until_released
from vfioctl.placement.model.placement import Placement

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from vfioctl.claims.ledger.ledger import ClaimLedger
    from vfioctl.claims.lifecycle.liveness import Makers
    from vfioctl.claims.model.claim import Claim
    from vfioctl.core.change import Plan
    from vfioctl.inventory.model.functions import Inventory
    from vfioctl.inventory.model.values import PciAddress
    from vfioctl.placement.model.capacity import Capacity
    from vfioctl.placement.model.request import ClaimRequest
    from vfioctl.session import Session


class Preview(NamedTuple):
    """What a request would get on a host, and the plan that would be applied; None if nothing has to be changed."""

    placement: Placement
    inventory: Inventory
    plan: Plan | None = None
    claim: Claim | None = None
    """The claim that the request's key has already, which would be returned."""


class Previewing:
    """The claims of one host, as `ClaimsApi` would make and release them."""

    def __init__(self, session: Session, ledger: ClaimLedger, makers: Makers) -> None:
        self._session, self._ledger, self._makers = session, ledger, makers

    def place(
        self,
        request: ClaimRequest,
        *,
        but: Collection[str] = (),
        pinned: Mapping[int, str] = NOTHING_PINNED,
        nodes: Mapping[PciAddress, int] = AS_TOLD,
        held: Mapping[PciAddress, str] = NOTHING_HELD,
        own: Collection[int] = (),
    ) -> tuple[Placement, Capacity]:
        """Return what a claim would get now, and the host from which it was chosen.

        `but`: the ids of claims that do not count. `pinned`: more CPUs that others have, each with who. `nodes`: the
        NUMA nodes of functions, where the firmware tells none. `held`: functions not to choose, and why. `own`:
        CPUs of the guest that asks: its process, if it runs, does not keep it from them.

        Raises ClaimConflict, NoCapacity, UnknownDevice.
        """
        taken = self._ledger.taken(but=but)
        choosing = Choosing(self._session, request, taken, pinned=pinned, nodes=nodes, held=held, own=own)
        choosing.draft(taken, None)
        return choosing.explained(), choosing.capacity

    def create(self, request: ClaimRequest, key: str = "", *, over: Sequence[Claim] = ()) -> Preview:
        """Return what `ClaimsApi.create` would do. Raises what that raises before it changes anything.

        `over`: claims that will have been released by then; plans may change the devices of one of them.
        """
        known = self._makers.known(key, request.canonical()) if key else None
        dead = (known.id,) if known and self._makers.has_died(known) else ()
        if known and not dead:
            return self._again(known)
        taken = self._ledger.taken(but=(*dead, *(each.id for each in over)))
        choosing = Choosing(self._session, request, taken)
        claim, _ = choosing.draft(taken, after(moment_of(self._session).now, request.ttl))
        devices = {each.subject for each in claim.devices}
        before = (*dead, *(each.id for each in over if any(device.subject in devices for device in each.devices)))
        session = self._session.acting_for(f"{CLAIM}{before[0]}") if before else self._session
        plan = choosing.plan or plan_needed(session, claim, choosing.inventory, bind=choosing.binds)
        return Preview(choosing.explained(), choosing.inventory, plan if plan and not plan.nothing_to_do else None)

    def _again(self, claim: Claim) -> Preview:
        inventory = InventoryApi(self._session).inventory(nvml=False)
        devices = tuple(each.subject for each in claim.devices if each.asked)
        ours = {each.address for each in claim.devices}
        nodes = {f.numa_node for f in inventory.functions if f.address in ours and f.numa_node is not None}
        why = (f"claim {claim.id} was made for this request and key already: it is {claim.state}",)
        return Preview(
            Placement(devices, claim.cpus, claim.hugepages, tuple(sorted(nodes)), why), inventory, claim=claim
        )

    def release(self, claim: Claim, *, wait: float = 0.0, waiting: Waiting | None = None) -> Plan | None:
        """Return the plan that puts back a claim's devices; None if nothing has to be changed for its release.

        Raises DeviceInUse, Unfinished.
        """
        claim = self._makers.settled(claim)
        if not claim.is_live or self._makers.has_died(claim):
            return None
        session = self._session.acting_for(f"{CLAIM}{claim.id}")
        plan = until_released(partial(plan_undo, session, claim), wait=wait, waiting=waiting)
        return plan if plan and not plan.nothing_to_do else None
