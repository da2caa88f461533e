"""The life of claims: create, adopt, release. The ledger is written before anything is changed for a claim.

Each change of devices is one journaled plan of another subsystem, made for the claim.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from vfioctl.claims.ledger.rows import CLAIM
from vfioctl.claims.lifecycle.liveness import Liveness, after, moment_of
from vfioctl.claims.model.claim import LABEL, Claim, Claimed, ClaimState
from vfioctl.core.locations import import_object
from vfioctl.errors import ClaimConflict, Stuck, VfioctlError
from vfioctl.inventory.api import InventoryApi, Waiting, until_released

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from vfioctl.claims.ledger.ledger import ClaimLedger, Draft
    from vfioctl.claims.model.difference import SeenCdi
    from vfioctl.core.action import Progress
    from vfioctl.core.change import Plan
    from vfioctl.inventory.model.functions import Inventory
    from vfioctl.placement.model.capacity import Capacity
    from vfioctl.placement.model.placement import Placement
    from vfioctl.placement.model.request import ClaimRequest
    from vfioctl.session import Session
    from vfioctl.vgpu.model.vgpu import Vgpu

Confirm = Callable[["Plan"], None]
"""Callback (plan), called before a plan is applied; may raise to cancel."""
_ATTEMPTS = 8
ADOPTED = "adopted"
"""The reason in the event of a claim whose devices were its owner's already."""


def followers(session: Session) -> tuple[Follower, ...]:
    """Return what other subsystems keep in step with claims."""
    return tuple(import_object(row.follower)(session) for row in session.subsystems if row.follower)


class Preview(NamedTuple):
    """What a request would get on a host, and the plan that would be applied; None if nothing has to be changed."""

    placement: Placement
    inventory: Inventory
    plan: Plan | None = None
    claim: Claim | None = None
    """The claim that the request's key has already, which would be returned."""


class Lifecycle:
    """Creates and releases the claims of one host; see `ClaimsApi` for what each method raises."""

    def __init__(self, session: Session, ledger: ClaimLedger) -> None:
        self._session, self._ledger, self.liveness = session, ledger, Liveness(session, ledger)

    def create(self, request: ClaimRequest, key: str, progress: Progress | None, confirm: Confirm | None) -> Claimed:
        """Choose the devices of a request, reserve them, bring them into the state that it needs, and hold them."""
        text = request.canonical()
        while True:
            if key and (known := self.liveness.made(key, text)):
                return self._usable(known, request, progress, confirm)
            claim, draft, capacity = self._reserve(request, text, key)
            if draft:
                claimed = self._prepare(claim, capacity, bind=request.bind, progress=progress, confirm=confirm)
                return self._followed(claimed._replace(placement=draft.placement, inventory=capacity.inventory))
            # another process was faster with the same key, and makes it

    def _usable(
        self, claim: Claim, request: ClaimRequest, progress: Progress | None, confirm: Confirm | None
    ) -> Claimed:
        """Return the claim that a request with its key has already: restored if its devices need it, and renewed.

        Raises ClaimConflict if it is not held, or cannot be restored.
        """
        _refuse_unheld(claim)
        outcome = None
        for plan in self.plans_again(claim, bind=request.bind):
            if confirm:
                confirm(plan)
            outcome = self.acting_for(claim).apply(plan, progress=progress)
        claim = self._ledger.claim(claim.id)
        moment = moment_of(self._session)
        if claim.boot_id != moment.boot_id:
            claim = self._ledger.restored(claim.id, moment)
        if claim.expires and claim.expires <= moment.now:
            expires = after(moment.now, request.ttl)
            why = f"requested again: expires {expires or 'never'}"
            claim = self._ledger.amend(claim.id, moment, expires=expires, why=why)
        return self._followed(Claimed(claim, outcome)) if outcome else Claimed(claim)

    def plans_again(self, claim: Claim, *, bind: bool = False) -> tuple[Plan, ...]:
        """Return the changes that restore what a claim had of its devices; none if nothing has to be changed.

        `bind`: also bind those that were on VFIO before the claim. Raises ClaimConflict if they are not the same.
        """
        from vfioctl.claims.lifecycle.device_plans import plans_again

        plans = plans_again(self.acting_for(claim), claim, bind=bind)
        return tuple(plan for plan in plans if not plan.nothing_to_do)

    def adopt(self, request: ClaimRequest) -> Claimed:
        """Claim the devices of a request as they are."""
        claim, drafted, _ = self._reserve(request, request.canonical(), "", as_they_are=True)
        held = self._ledger.move(claim.id, ClaimState.HELD, moment_of(self._session), why=ADOPTED)
        claimed = self._followed(Claimed(held))
        over = drafted.over_quota if drafted else ""
        return claimed._replace(problem="; ".join(filter(None, [over, claimed.problem])))

    def _reserve(
        self, request: ClaimRequest, text: str, key: str, *, as_they_are: bool = False
    ) -> tuple[Claim, Draft | None, Capacity]:
        from vfioctl.claims.lifecycle.devices import draft
        from vfioctl.placement.api import PlacementApi

        for attempt in range(_ATTEMPTS):
            moment = moment_of(self._session)
            capacity = PlacementApi(self._session).read(request, self._ledger.taken())
            expires = after(moment.now, request.ttl)
            make_draft = partial(draft, request, capacity, expires=expires, as_they_are=as_they_are)
            try:
                claim, drafted = self._ledger.reserve(make_draft, text, key, moment)
            except ClaimConflict:  # a parent of vGPUs was claimed after they were planned
                if capacity.creation is None or attempt + 1 == _ATTEMPTS:
                    raise
            else:
                return claim, drafted, capacity
        raise AssertionError("the last attempt returns or raises")

    def _prepare(
        self, claim: Claim, capacity: Capacity, *, bind: bool, progress: Progress | None, confirm: Confirm | None
    ) -> Claimed:
        """Bring a reserved claim's devices into the state that it needs."""
        from vfioctl.claims.lifecycle.device_plans import plan_needed

        session = self.acting_for(claim)
        try:
            plan = plan_needed(session, claim, capacity, bind=bind)
            if plan is None or plan.nothing_to_do:
                return Claimed(self._ledger.move(claim.id, ClaimState.HELD, moment_of(self._session)))
            if confirm:
                confirm(plan)
            outcome = session.apply(plan, progress=progress)
        except (VfioctlError, KeyboardInterrupt) as error:
            ended = ClaimState.WEDGED if isinstance(error, Stuck) else ClaimState.FAILED
            self._settle(claim, ClaimState.RESERVED, ended, str(error))
            raise
        return Claimed(self._settle(claim, ClaimState.RESERVED, ClaimState.HELD), outcome)

    def release(
        self,
        name: str,
        *,
        wait: float = 0.0,
        waiting: Waiting | None = None,
        unchanged_in_use: bool = False,
        progress: Progress | None = None,
        confirm: Confirm | None = None,
    ) -> Claimed:
        """Make the claim's devices what they were before the claim, and give them back."""
        from vfioctl.claims.lifecycle.device_plans import plan_undo

        claim = self.liveness.awaited(self._ledger.claim(name))
        if not claim.is_live:
            return Claimed(claim)
        if self.liveness.has_died(claim):
            return Claimed(self.liveness.end(claim))
        unchanged = unchanged_in_use or self._is_adopted(claim)
        undo = partial(plan_undo, self.acting_for(claim), claim, unchanged_in_use=unchanged)
        try:
            plan = until_released(undo, wait=wait, waiting=waiting)
            return self._give_back(claim, plan, progress, confirm)
        except VfioctlError:
            now = self._ledger.claim(claim.id)
            if now.state is ClaimState.RELEASED:  # another process was faster
                return Claimed(now)
            raise

    def _give_back(
        self, claim: Claim, plan: Plan | None, progress: Progress | None, confirm: Confirm | None
    ) -> Claimed:
        if plan is None or plan.nothing_to_do:
            return self._followed(Claimed(self._ledger.move(claim.id, ClaimState.RELEASED, moment_of(self._session))))
        if confirm:
            confirm(plan)
        self._ledger.move(claim.id, ClaimState.RELEASING, moment_of(self._session))
        try:
            outcome = self.acting_for(claim).apply(plan, progress=progress)
        except (VfioctlError, KeyboardInterrupt) as error:
            held = ClaimState.WEDGED if isinstance(error, Stuck) else ClaimState.HELD
            self._settle(claim, ClaimState.RELEASING, held, str(error))
            raise
        return self._followed(Claimed(self._settle(claim, ClaimState.RELEASING, ClaimState.RELEASED), outcome))

    # -- previews ------------------------------------------------------------------------------------

    def preview_create(self, request: ClaimRequest, key: str = "", *, over: Sequence[Claim] = ()) -> Preview:
        """Return what creating a claim would do."""
        from vfioctl.claims.lifecycle.device_plans import plan_needed
        from vfioctl.claims.lifecycle.devices import draft
        from vfioctl.placement.api import PlacementApi

        known = self.liveness.known(key, request.canonical()) if key else None
        dead = (known.id,) if known and self.liveness.has_died(known) else ()
        if known and not dead:
            if known.state is ClaimState.RESERVED:  # its process still makes it
                return self._again(known, ())
            _refuse_unheld(known)
            return self._again(known, self.plans_again(known, bind=request.bind))
        taken = self._ledger.taken(but=(*dead, *(claim.id for claim in over)))
        capacity = PlacementApi(self._session).read(request, taken)
        drafted = draft(request, capacity, taken)
        subjects = {device.subject for device in drafted.claim.devices}
        released = (claim.id for claim in over if not subjects.isdisjoint(device.subject for device in claim.devices))
        before = (*dead, *released)
        session = self._session.acting_for(f"{CLAIM}{before[0]}") if before else self._session
        plan = plan_needed(session, drafted.claim, capacity, bind=request.bind)
        return Preview(drafted.placement, capacity.inventory, plan if plan and not plan.nothing_to_do else None)

    def _again(self, claim: Claim, plans: Sequence[Plan]) -> Preview:
        from vfioctl.placement.model.placement import Placement

        inventory = InventoryApi(self._session).inventory(nvml=False)
        devices = tuple(device.subject for device in claim.devices if device.asked)
        ours = {device.address for device in claim.devices}
        nodes = {f.numa_node for f in inventory.functions if f.address in ours and f.numa_node is not None}
        why = (f"claim {claim.id} was made for this request and key already: it is {claim.state}",)
        placement = Placement(devices, claim.cpus, claim.hugepages, tuple(sorted(nodes)), why)
        return Preview(placement, inventory, next(iter(plans), None), claim)

    def preview_release(self, claim: Claim, *, wait: float = 0.0, waiting: Waiting | None = None) -> Plan | None:
        """Return the plan that puts back a claim's devices; None if nothing has to be changed for its release."""
        from vfioctl.claims.lifecycle.device_plans import plan_undo

        claim = self.liveness.settled(claim)
        if not claim.is_live or self.liveness.has_died(claim):
            return None
        session = self.acting_for(claim)
        undo = partial(plan_undo, session, claim, unchanged_in_use=self._is_adopted(claim))
        plan = until_released(undo, wait=wait, waiting=waiting)
        return plan if plan and not plan.nothing_to_do else None

    # -- what both share -----------------------------------------------------------------------------

    def _is_adopted(self, claim: Claim) -> bool:
        """Return whether a claim's devices were its owner's before, other than for a run of a domain."""
        return LABEL not in claim.labels and any(event.why == ADOPTED for event in self._ledger.events(claim=claim.id))

    def acting_for(self, claim: Claim) -> Session:
        """Return a session whose changes are made for this claim."""
        return self._session.acting_for(f"{CLAIM}{claim.id}")

    def _settle(self, claim: Claim, during: ClaimState, state: ClaimState, why: str = "") -> Claim:
        """Set the state after a change, unless the change's own transaction has set it already."""
        now = self._ledger.claim(claim.id)
        return self._ledger.move(claim.id, state, moment_of(self._session), why=why) if now.state is during else now

    def _followed(self, made: Claimed) -> Claimed:
        """Let the followers of claims follow. The claim is what it is if that fails."""
        problems = (follower.follow() for follower in followers(self._session))
        return made._replace(problem="; ".join(filter(None, problems)))


def _refuse_unheld(claim: Claim) -> None:
    """Raise ClaimConflict for a claim that its key would return, and whose devices nobody may use now."""
    if claim.state is not ClaimState.HELD:
        raise ClaimConflict(
            f"claim {claim.id} of {claim.owner} with the key {claim.key!r} is {claim.state}, not held",
            hint="release it first",
            next_command=f"vfioctl claim release {claim.id}",
            facts={"claim": claim.id, "owner": claim.owner},
        )


class Follower(Protocol):
    """Files that follow the claims of one host. A row of the table of subsystems names its class."""

    def __init__(self, session: Session) -> None: ...

    def follow(self) -> str:
        """Bring the files up to date after claims changed, if the configuration says so; return why that failed."""

    def differences(self, inventory: Inventory, mdevs: Sequence[Vgpu]) -> Iterable[SeenCdi]:
        """Return where the files differ from the claims, and from these devices, which were just read."""

    def renew(self, *, progress: Progress | None = None) -> object:
        """Write again the files that differ. Raises what planning and applying raise."""
