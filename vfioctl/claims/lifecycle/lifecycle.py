"""The life of claims: create, adopt, release. The ledger is written before anything is changed for a claim.
Each change of devices is one journaled plan of another subsystem, made for the claim."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from vfioctl.claims.ledger.ledger import ClaimLedger
from vfioctl.claims.ledger.rows import CLAIM
from vfioctl.claims.lifecycle.liveness import Liveness, moment_of
from vfioctl.claims.model.claim import LABEL, Claim, Claimed, ClaimState
from vfioctl.core.locations import import_object
from vfioctl.errors import ClaimConflict, Stuck, VfioctlError
from vfioctl.inventory.api import Waiting, until_released

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from vfioctl.claims.model.difference import Difference
    from vfioctl.core.change import Plan
    from vfioctl.core.events import Cancel, Progress
    from vfioctl.inventory.model.functions import Inventory
    from vfioctl.placement.api import PlacementApi
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


class Lifecycle:
    """Creates and releases the claims of one host."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @cached_property
    def ledger(self) -> ClaimLedger:
        """The claims' part of the ledger."""
        return ClaimLedger(self._session.store, self._session.publish)

    @property
    def _placement(self) -> PlacementApi:
        from vfioctl.placement.api import PlacementApi

        return PlacementApi(self._session)

    @cached_property
    def _liveness(self) -> Liveness:
        return Liveness(self._session, self.ledger)

    def plans_again(self, claim: Claim, *, bind: bool = False) -> tuple[Plan, ...]:
        """Return the changes that restore what a claim had of its devices; none if nothing has to be changed.
        `bind`: also bind those that were on VFIO before the claim. Raises ClaimConflict if they are not the same."""
        from vfioctl.claims.lifecycle.device_plans import plans_again

        plans = plans_again(self.acting_for(claim), claim, bind=bind)
        return tuple(plan for plan in plans if not plan.nothing_to_do)

    def release(
        self,
        name: str,
        *,
        wait: float = 0.0,
        waiting: Waiting | None = None,
        unchanged_in_use: bool = False,
        progress: Progress | None = None,
        cancel: Cancel | None = None,
        confirm: Confirm | None = None,
    ) -> Claimed:
        """Make the claim's devices what they were before it, and give them back. A second time does nothing.
        `wait`: seconds to wait for holders; `waiting` is called meanwhile. `unchanged_in_use`: devices that the claim
        did not change may be in use, as those that are with their drivers again. Raises Busy while another process
        makes it, DeviceInUse, Unfinished, and what `Session.apply` raises; the claim holds its devices then."""
        claim = self._liveness.awaited(self.ledger.claim(name), cancel)
        if not claim.is_live:
            return Claimed(claim)
        if self._liveness.has_died(claim):
            return Claimed(self._liveness.end(claim))
        try:
            undo = self._undo(claim, unchanged_in_use=unchanged_in_use)
            plan = until_released(undo, wait=wait, waiting=waiting, cancel=cancel)
            return self._give_back(claim, plan, progress, cancel, confirm)
        except VfioctlError:
            now = self.ledger.claim(claim.id)
            if now.state is ClaimState.RELEASED:  # another process was faster
                return Claimed(now)
            raise

    def _give_back(
        self, claim: Claim, plan: Plan | None, progress: Progress | None, cancel: Cancel | None, confirm: Confirm | None
    ) -> Claimed:
        if plan is None:
            return self._followed(Claimed(self.ledger.move(claim.id, ClaimState.RELEASED, moment_of(self._session))))
        if confirm:
            confirm(plan)
        self.ledger.move(claim.id, ClaimState.RELEASING, moment_of(self._session))
        try:
            outcome = self.acting_for(claim).apply(plan, progress=progress, cancel=cancel)
        except (VfioctlError, KeyboardInterrupt) as error:
            held = ClaimState.WEDGED if isinstance(error, Stuck) else ClaimState.HELD
            self._settle(claim, ClaimState.RELEASING, held, str(error))
            raise
        return self._followed(Claimed(self._settle(claim, ClaimState.RELEASING, ClaimState.RELEASED), outcome))

    def _undo(self, claim: Claim, *, unchanged_in_use: bool = False) -> Callable[[], Plan | None]:
        """Return what plans what has to be changed to put a claim's devices back; it returns None if nothing has to.
        Devices that were their owner's before may be in use, unless they were claimed for a run of a domain."""
        from vfioctl.claims.lifecycle.device_plans import plan_undo

        if not unchanged_in_use and LABEL not in claim.labels:
            unchanged_in_use = any(event.why == ADOPTED for event in self.ledger.events(claim=claim.id))
        session, in_use = self.acting_for(claim), unchanged_in_use

        def undo() -> Plan | None:
            plan = plan_undo(session, claim, unchanged_in_use=in_use)
            return plan if plan and not plan.nothing_to_do else None

        return undo

    def acting_for(self, claim: Claim) -> Session:
        """Return a session whose changes are made for a claim."""
        return self._session.acting_for(f"{CLAIM}{claim.id}")

    def _settle(self, claim: Claim, during: ClaimState, state: ClaimState, why: str = "") -> Claim:
        """Set the state after a change, unless the change's own transaction has set it already."""
        now = self.ledger.claim(claim.id)
        return self.ledger.move(claim.id, state, moment_of(self._session), why=why) if now.state is during else now

    def _followed(self, made: Claimed) -> Claimed:
        """Let the followers of claims follow. The claim is what it is if that fails."""
        problems = (follower.follow() for follower in followers(self._session))
        return made._replace(problem="; ".join(filter(None, problems)))


def refuse_unheld(claim: Claim) -> None:
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

    def differences(self, inventory: Inventory, mdevs: Sequence[Vgpu]) -> Iterable[Difference]:
        """Return where the files differ from the claims, and from these devices, which were just read."""

    def renew(self, *, progress: Progress | None = None, cancel: Cancel | None = None) -> object:
        """Write again the files that differ. Raises what planning and applying raise."""
