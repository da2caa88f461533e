"""Makes claims: preview, reserve, prepare, hold. What a preview showed is what is done, or nothing is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

from vfioctl.claims.ledger.rows import CLAIM
from vfioctl.claims.lifecycle.lifecycle import Confirm, Lifecycle, refuse_unheld
from vfioctl.claims.lifecycle.liveness import after, moment_of
from vfioctl.claims.model.claim import Claim, Claimed, ClaimState, Preview
from vfioctl.core.events import check_stop
from vfioctl.errors import ClaimConflict, StalePlan, Stuck, VfioctlError
from vfioctl.inventory.api import InventoryApi
from vfioctl.signals import deferred

if TYPE_CHECKING:
    from vfioctl.claims.ledger.ledger import Draft
    from vfioctl.core.change import Plan
    from vfioctl.core.events import Cancel, Progress
    from vfioctl.placement.model.capacity import Capacity
    from vfioctl.placement.model.claims import Taken
    from vfioctl.placement.model.placement import Placement
    from vfioctl.placement.model.request import ClaimRequest

_ATTEMPTS = 8


class Creation(Lifecycle):
    """Makes the claims of one host."""

    def preview_create(self, request: ClaimRequest, key: str = "", *, over: Sequence[Claim] = ()) -> Preview:
        """Return what `create` would do. Raises what that raises before it changes anything.
        `over`: claims that will have been released by then; plans may change the devices of one of them."""
        from vfioctl.claims.lifecycle.device_plans import plan_needed
        from vfioctl.claims.lifecycle.devices import draft

        known = self._liveness.known(key, request.canonical()) if key else None
        dead = (known.id,) if known and self._liveness.has_died(known) else ()
        if known and not dead:
            if known.state is ClaimState.RESERVED:  # its process still makes it
                return self._again(known, ())
            refuse_unheld(known)
            return self._again(known, self.plans_again(known, bind=request.bind))
        taken = self.ledger.taken(but=(*dead, *(claim.id for claim in over)))
        capacity = self._placement.read(request, taken)
        drafted = draft(request, capacity, taken)
        subjects = {device.subject for device in drafted.claim.devices}
        released = (claim.id for claim in over if not subjects.isdisjoint(device.subject for device in claim.devices))
        before = (*dead, *released)
        session = self._session.acting_for(f"{CLAIM}{before[0]}") if before else self._session
        plan = plan_needed(session, drafted.claim, capacity, bind=request.bind)
        needed = plan if plan and not plan.nothing_to_do else None
        return Preview(drafted.placement, capacity.inventory, needed, capacity=capacity)

    def _again(self, claim: Claim, plans: Sequence[Plan]) -> Preview:
        from vfioctl.placement.model.placement import Placement

        inventory = InventoryApi(self._session).inventory(nvml=False)
        devices = tuple(device.subject for device in claim.devices if device.asked)
        ours = {device.address for device in claim.devices} | {share.address for share in claim.shares}
        nodes = {f.numa_node for f in inventory.functions if f.address in ours and f.numa_node is not None}
        why = (f"claim {claim.id} was made for this request and key already: it is {claim.state}",)
        placement = Placement(devices, claim.cpus, claim.hugepages, tuple(sorted(nodes)), why, shares=claim.shares)
        return Preview(placement, inventory, next(iter(plans), None), claim)

    def create(
        self,
        request: ClaimRequest,
        *,
        key: str = "",
        preview: Preview | None = None,
        near: bool = False,
        progress: Progress | None = None,
        cancel: Cancel | None = None,
        confirm: Confirm | None = None,
    ) -> Claimed:
        """Choose, reserve, prepare and hold the devices of a request. Repeating it with its `key` returns its claim,
        after an interruption too. `preview`: of this request; the claim gets what it shows, by the plan that it shows.
        `near`: read only the devices that it names, in half of the time; the outcome has no names such as gpu0.
        `confirm`: called with the plan before anything is reserved. Raises ClaimConflict, NoCapacity, Busy, StalePlan
        if the preview does not fit any more, and what `BindingApi.plan_bind`, `VgpuApi.plan_create` and
        `Session.apply` raise. A claim that was reserved has failed then; after Stuck it is wedged."""
        for attempt in count(1):
            if key and (known := self._liveness.made(key, request.canonical(), cancel)):
                return self._usable(known, request, preview, progress, cancel, confirm)
            shown = preview or (self.preview_create(request, key) if confirm else None)
            if confirm and shown and shown.plan:
                confirm(shown.plan)
            try:
                claimed = self._make(request, key, shown, progress, cancel, near=near)
            except _Outdated as outdated:
                if preview or attempt == _ATTEMPTS:
                    raise outdated.error from outdated.__cause__
            else:
                if claimed:
                    return self._followed(claimed)
                # another process was faster with the same key, and makes it
        raise AssertionError("counting never ends")

    def _usable(
        self,
        claim: Claim,
        request: ClaimRequest,
        preview: Preview | None,
        progress: Progress | None,
        cancel: Cancel | None,
        confirm: Confirm | None,
    ) -> Claimed:
        """Return the claim that a request with its key has already: restored if its devices need it, and renewed.
        Raises ClaimConflict if it is not held, or cannot be restored."""
        refuse_unheld(claim)
        outcome = None
        plans = self.plans_again(claim, bind=request.bind)
        if preview and plans and not _same_changes(preview.plan, plans[0]):
            raise _stale(f"claim {claim.id}")
        for plan in plans:
            if confirm:
                confirm(plan)
            outcome = self.acting_for(claim).apply(plan, progress=progress, cancel=cancel)
        claim = self.ledger.claim(claim.id)
        moment = moment_of(self._session)
        if claim.boot_id != moment.boot_id:
            claim = self.ledger.restored(claim.id, moment)
        if claim.expires and claim.expires <= moment.now:
            expires = after(moment.now, request.ttl)
            why = f"requested again: expires {expires or 'never'}"
            claim = self.ledger.amend(claim.id, moment, expires=expires, why=why)
        return self._followed(Claimed(claim, outcome)) if outcome else Claimed(claim)

    def _make(
        self,
        request: ClaimRequest,
        key: str,
        shown: Preview | None,
        progress: Progress | None,
        cancel: Cancel | None,
        *,
        near: bool,
    ) -> Claimed | None:
        """Reserve, prepare and hold what a request gets; None if another process has made a claim with its key."""
        from vfioctl.claims.lifecycle.device_plans import plan_needed

        check_stop(cancel)
        if shown:
            capacity = self._as_shown(request, key, shown)
        else:
            capacity = self._placement.read(request, self.ledger.taken(), near=near)
        made: tuple[Claim, Draft | None] | None = None
        try:
            with deferred():  # a signal comes when it is known what is reserved
                made = self._reserve(request, key, capacity, shown)
            claim, draft = made
            if draft is None:
                return None
            self._refuse_changing(claim)
            plan = shown.plan if shown else plan_needed(self.acting_for(claim), claim, capacity, bind=request.bind)
            claimed = self._prepare(claim, plan, progress, cancel)
        except (VfioctlError, KeyboardInterrupt) as error:
            if made and made[1]:
                ended = ClaimState.WEDGED if isinstance(error, Stuck) else ClaimState.FAILED
                with deferred():
                    self._settle(made[0], ClaimState.RESERVED, ended, str(error))
            raise
        return claimed._replace(placement=draft.placement, inventory=capacity.inventory)

    def _refuse_changing(self, claim: Claim) -> None:
        """Raise Busy or Unfinished if a GPU of which the claim has a share is being changed, as by a bind that began
        before the share was recorded; ClaimConflict if it was taken from its driver since it was read."""
        from vfioctl.claims.lifecycle.device_plans import plans_again
        from vfioctl.core.journal import under_way_error, unfinished_error

        if not claim.shares:
            return
        for change in self._session.being_changed():
            if changing := sorted(claim.gpu_addresses.intersection(change.subjects)):
                raise under_way_error(changing, change.process) if change.under_way else unfinished_error(changing)
        plans_again(self._session, claim)

    def _prepare(self, claim: Claim, plan: Plan | None, progress: Progress | None, cancel: Cancel | None) -> Claimed:
        if plan is None or plan.nothing_to_do:
            return Claimed(self.ledger.move(claim.id, ClaimState.HELD, moment_of(self._session)))
        outcome = self.acting_for(claim).apply(plan, progress=progress, cancel=cancel)
        return Claimed(self._settle(claim, ClaimState.RESERVED, ClaimState.HELD), outcome)

    def _reserve(
        self, request: ClaimRequest, key: str, capacity: Capacity, shown: Preview | None
    ) -> tuple[Claim, Draft | None]:
        """Record the claim, with what it takes of what other claims have left. Raises _Outdated if that is not what
        was shown, or if a parent of vGPUs was claimed after they were planned."""
        from vfioctl.claims.lifecycle.devices import draft

        moment = moment_of(self._session)
        expires = after(moment.now, request.ttl)

        def make_draft(taken: Taken) -> Draft:
            try:
                made = draft(request, capacity, taken, expires)
            except ClaimConflict as conflict:
                if capacity.creation is None:
                    raise
                raise _Outdated(_stale("the claims") if shown else conflict) from conflict
            if shown and _share(made.placement) != _share(shown.placement):
                raise _Outdated(_stale("the claims"))
            return made

        return self.ledger.reserve(make_draft, request.canonical(), key, moment)

    def _as_shown(self, request: ClaimRequest, key: str, shown: Preview) -> Capacity:
        """Return the host as it is now, with the vGPUs that were shown. Raises _Outdated if a new preview would differ
        from the one that was shown, but for the UUIDs of vGPUs."""
        if shown.capacity is None:  # of a claim that its key had, and has no more
            raise _Outdated(_stale(f"claim {shown.claim.id}" if shown.claim else "the host"))
        if shown.capacity.creation and shown.plan:
            self._refuse_changed(shown.plan)
            now = self._placement.read(request, self.ledger.taken())
            return replace(now, creation=shown.capacity.creation)
        fresh = self.preview_create(request, key)
        same = _share(fresh.placement) == _share(shown.placement) and _same_changes(fresh.plan, shown.plan)
        if fresh.capacity is None or not same:
            raise _Outdated(_stale("the host"))
        return fresh.capacity

    def _refuse_changed(self, plan: Plan) -> None:
        from vfioctl.core.verify import refuse_stale

        try:
            refuse_stale(self._session.registry, plan, self._session.kernel)
        except StalePlan as error:
            raise _Outdated(error) from error


class _Outdated(Exception):
    """What was planned for a claim cannot be done any more, and nothing was reserved. `error`: what to tell of it."""

    def __init__(self, error: VfioctlError) -> None:
        super().__init__()
        self.error = error


def _share(placement: Placement) -> tuple[object, ...]:
    """Return what a placement takes of the host; its reasons may differ."""
    return placement.devices, placement.cpus, placement.hugepages, placement.shares


def _same_changes(one: Plan | None, other: Plan | None) -> bool:
    return (one.changes if one else ()) == (other.changes if other else ())


def _stale(what: str) -> StalePlan:
    return StalePlan(f"{what} changed after the claim was previewed", hint="preview it again")
