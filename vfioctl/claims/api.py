"""The use cases of claims: create, list, release, renew, transfer, adopt, watch.

A claim is committed to the ledger before anything is changed for it, and each change of its devices is one journaled
plan of another subsystem, made for the claim. May not write to the host by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING

from vfioctl.claims.ledger.ledger import ClaimLedger
from vfioctl.claims.ledger.rows import CLAIM
from vfioctl.claims.lifecycle.liveness import Makers
from vfioctl.claims.lifecycle.outcome import Claimed
from vfioctl.claims.lifecycle.timestamps import after, moment_of
from vfioctl.claims.model.claim import Claim, ClaimState
from vfioctl.errors import BadSpec, ClaimConflict, Stuck, VfioctlError
from vfioctl.inventory.api import Waiting, until_released
from vfioctl.placement.model.owner import Owner

if TYPE_CHECKING:
    from vfioctl.claims.ledger.rows import Event
    from vfioctl.claims.lifecycle.preview import Previewing
    from vfioctl.claims.lifecycle.selection import Choosing
    from vfioctl.claims.model.documents import Nodes, Stale
    from vfioctl.claims.reconcile.reconcile import Reconciling
    from vfioctl.core.action import Progress
    from vfioctl.core.change import Plan
    from vfioctl.inventory.model.values import Subject
    from vfioctl.placement.model.capacity import Capacity
    from vfioctl.placement.model.request import ClaimRequest
    from vfioctl.session import Session

Confirm = Callable[["Plan"], None]
"""Callback (plan), called before a plan is applied; may raise to cancel."""
NO_LABELS: Mapping[str, str] = {}
_PAUSE, _ATTEMPTS = 0.2, 8


class ClaimsApi:
    """The claims of one host."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @cached_property
    def ledger(self) -> ClaimLedger:
        """The claims' part of the ledger."""
        return ClaimLedger(self._session.store, self._session.publish)

    @cached_property
    def _makers(self) -> Makers:
        return Makers(self._session, self.ledger)

    # -- looking -----------------------------------------------------------------------------------

    @property
    def boot_id(self) -> str:
        """This boot's id. Raises KernelRefused if the host does not tell."""
        return self._session.boot_id

    def claims(self, *, live_only: bool = True) -> tuple[Claim, ...]:
        """Return the claims, the newest first. Raises StoreDamaged."""
        return self.ledger.claims(live_only=live_only)

    def claim(self, name: str) -> Claim:
        """Return the claim with this id, or the only one whose id begins so. Raises BadSpec, StoreDamaged."""
        return self.ledger.claim(name)

    def names_of(self, owner: str) -> frozenset[str]:
        """Return what the claims that an owner has or had are called in the journal. Raises BadSpec."""
        return frozenset(f"{CLAIM}{claim}" for claim in self.ledger.once_of(Owner(owner)))

    def events(self, claim: Claim) -> tuple[Event, ...]:
        """Return what happened to a claim, in order."""
        return self.ledger.events(claim=claim.id)

    def watch(self) -> Iterator[Event]:
        """Yield each change of a claim from now on. Never ends."""
        last = self.ledger.last_event()
        while True:
            for event in self.ledger.events(after=last):
                last = event.number
                yield event
            time.sleep(_PAUSE)

    def nodes(self, claim: Claim) -> Mapping[str, Nodes]:
        """Return the VFIO device files of the claim's devices, by address or UUID, as they are now."""
        from vfioctl.claims.lifecycle.device_nodes import nodes_of

        return nodes_of(self._session, claim)

    def capacity(self, *, cpus: bool = False, ledger: bool = True) -> Capacity:
        """Return the host's capacity. `ledger`: whether claims count."""
        from vfioctl.inventory.api import InventoryApi
        from vfioctl.placement.model.taken import Taken
        from vfioctl.placement.probe.capacity import read_capacity

        inventory = InventoryApi(self._session).inventory(nvml=False)
        taken, kernel = self.ledger.taken() if ledger else Taken(), self._session.kernel
        return read_capacity(kernel, inventory, taken, self._session.settings("claims"), cpus=cpus)

    def devices_called(self, words: Sequence[str]) -> tuple[Subject, ...]:
        """Return the functions and mediated devices with these names. Raises BadAddress, UnknownDevice, BadSpec."""
        from vfioctl.claims.lifecycle.devices import subjects
        from vfioctl.inventory.api import InventoryApi

        return subjects(InventoryApi(self._session).inventory(nvml=False), words)

    # -- creating ----------------------------------------------------------------------------------

    @property
    def previewing(self) -> Previewing:
        """Says what would be done."""
        from vfioctl.claims.lifecycle.preview import Previewing

        return Previewing(self._session, self.ledger, self._makers)

    def create(
        self,
        request: ClaimRequest,
        *,
        key: str = "",
        progress: Progress | None = None,
        confirm: Confirm | None = None,
    ) -> Claimed:
        """Choose the devices of a request, reserve them, bring them into the state that it needs, and hold them.

        `key`: names the request. Repeating it with its key returns its claim, after an interruption too.

        Raises ClaimConflict, NoCapacity, Busy, and what `BindingApi.plan_bind`, `VgpuApi.plan_create` and
        `Session.apply` raise. The claim has failed then; after Stuck it is wedged.
        """
        text = request.canonical()
        while True:
            if key and (known := self._makers.made(key, text)):
                return Claimed(known)
            claim, choosing, is_new = self._reserve(request, text, key)
            if is_new:
                return self._followed(self._bring(claim, choosing, progress, confirm)._replace(choosing=choosing))
            # another process was faster with the same key, and makes it

    def _reserve(
        self, request: ClaimRequest, text: str, key: str, *, as_they_are: bool = False
    ) -> tuple[Claim, Choosing, bool]:
        for attempt in range(_ATTEMPTS):
            moment = moment_of(self._session)
            choosing = self._choosing(request, as_they_are=as_they_are)
            draft = partial(choosing.draft, expires=after(moment.now, request.ttl))
            try:
                claim, is_new = self.ledger.reserve(draft, text, key, moment)
            except ClaimConflict:  # a parent of vGPUs was claimed after they were planned
                if choosing.plan is None or attempt + 1 == _ATTEMPTS:
                    raise
            else:
                return claim, choosing, is_new
        raise AssertionError("the last attempt returns or raises")

    def _choosing(self, request: ClaimRequest, *, as_they_are: bool = False) -> Choosing:
        from vfioctl.claims.lifecycle.selection import Choosing

        return Choosing(self._session, request, self.ledger.taken(), as_they_are=as_they_are)

    def _bring(self, claim: Claim, choosing: Choosing, progress: Progress | None, confirm: Confirm | None) -> Claimed:
        """Bring a reserved claim's devices into the state that it needs."""
        from vfioctl.claims.lifecycle.device_plans import plan_needed

        session = self._acting_for(claim)
        try:
            plan = choosing.plan or plan_needed(session, claim, choosing)
            if plan is None or plan.nothing_to_do:
                return Claimed(self.ledger.move(claim.id, ClaimState.HELD, moment_of(self._session)))
            if confirm:
                confirm(plan)
            outcome = session.apply(plan, progress=progress)
        except (VfioctlError, KeyboardInterrupt) as error:
            ended = ClaimState.WEDGED if isinstance(error, Stuck) else ClaimState.FAILED
            self._settle(claim, ClaimState.RESERVED, ended, str(error))
            raise
        return Claimed(self._settle(claim, ClaimState.RESERVED, ClaimState.HELD), outcome)

    def adopt(self, owner: str, devices: Sequence[Subject], labels: Mapping[str, str] = NO_LABELS) -> Claimed:
        """Claim devices as they are, in use or not, for an owner who has them already. Raises ClaimConflict."""
        from vfioctl.placement.model.request import ClaimRequest

        request = ClaimRequest(owner=Owner(owner), devices=tuple(devices), bind=False, labels=labels)
        claim, *_ = self._reserve(request, request.canonical(), "", as_they_are=True)
        held = self.ledger.move(claim.id, ClaimState.HELD, moment_of(self._session), why="adopted")
        return self._followed(Claimed(held))

    # -- afterwards --------------------------------------------------------------------------------

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
        """Make the claim's devices what they were before the claim, and give them back. A second time does nothing.

        `wait`: seconds to wait for holders; `waiting` is called meanwhile. `unchanged_in_use`: devices that the claim
        did not change may be in use, as those that are with their drivers again.

        Raises Busy while another process makes it, DeviceInUse, Unfinished, and what `Session.apply` raises; the claim
        holds its devices then.
        """
        from vfioctl.claims.lifecycle.device_plans import plan_undo

        claim = self.await_maker(name)
        if not claim.is_live:
            return Claimed(claim)
        if self._makers.has_died(claim):
            return Claimed(self._makers.end(claim))
        session = self._acting_for(claim)
        plan = until_released(
            partial(plan_undo, session, claim, unchanged_in_use=unchanged_in_use), wait=wait, waiting=waiting
        )
        if plan is None or plan.nothing_to_do:
            return self._followed(Claimed(self.ledger.move(claim.id, ClaimState.RELEASED, moment_of(self._session))))
        if confirm:
            confirm(plan)
        self.ledger.move(claim.id, ClaimState.RELEASING, moment_of(self._session))
        try:
            outcome = session.apply(plan, progress=progress)
        except (VfioctlError, KeyboardInterrupt) as error:
            held = ClaimState.WEDGED if isinstance(error, Stuck) else ClaimState.HELD
            self._settle(claim, ClaimState.RELEASING, held, str(error))
            raise
        return self._followed(Claimed(self._settle(claim, ClaimState.RELEASING, ClaimState.RELEASED), outcome))

    def await_maker(self, name: str) -> Claim:
        """Wait until no process makes a claim any more, and return it. Raises Busy, Unfinished."""
        return self._makers.awaited(self.claim(name))

    def renew(self, name: str, seconds: float | None) -> Claim:
        """Set when a live claim expires, from now on; None: never. Raises ClaimConflict, BadSpec."""
        if seconds is not None and seconds <= 0:
            raise BadSpec("a claim's term must be longer than 0 s", hint="to end it, release it")
        moment = moment_of(self._session)
        expires = after(moment.now, seconds)
        return self.ledger.amend(self.claim(name).id, moment, expires=expires, why=f"expires {expires or 'never'}")

    def transfer(self, name: str, owner: str) -> Claim:
        """Give a live claim to another owner. Raises ClaimConflict, BadSpec."""
        claim = self.claim(name)
        why = f"transferred from {claim.owner}"
        return self.ledger.amend(claim.id, moment_of(self._session), owner=Owner(owner), why=why)

    def stale(self, claims: Iterable[Claim]) -> Stale:
        """Return which of these claims are stale, and why, as far as a listing can tell."""
        from vfioctl.claims.reconcile.staleness import stale_claims

        return stale_claims(self._session, tuple(claims), self.ledger)

    @property
    def reconciling(self) -> Reconciling:
        """Compares the ledger with the machine."""
        from vfioctl.claims.reconcile.reconcile import Reconciling

        return Reconciling(self._session, self)

    def _followed(self, made: Claimed) -> Claimed:
        """Let the CDI files follow the claims, if the configuration says so. The claim is what it is if that fails."""
        try:
            if self._session.settings("claims").renew_cdi:
                from vfioctl.containers.api import ContainersApi

                ContainersApi(self._session).cdi.renew(create=True)
        except VfioctlError as error:
            return made._replace(problem=f"the CDI files were not written again: {error.message}")
        return made

    # -- common ------------------------------------------------------------------------------------

    def _acting_for(self, claim: Claim) -> Session:
        return self._session.acting_for(f"{CLAIM}{claim.id}")

    def _settle(self, claim: Claim, during: ClaimState, state: ClaimState, why: str = "") -> Claim:
        """Set the state after a change, unless the change's own transaction has set it already."""
        now = self.claim(claim.id)
        return self.ledger.move(claim.id, state, moment_of(self._session), why=why) if now.state is during else now


def suggest_claims(session: Session, _begun: str) -> list[tuple[str, str]]:
    """Return the live claims' ids, each with its owner."""
    return [(claim.id, claim.owner) for claim in ClaimsApi(session).claims()]
