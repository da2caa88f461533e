"""The use cases of claims: create, list, release, renew, transfer, adopt, watch.

A claim is committed to the ledger before anything is changed for it, and each change of its devices is one journaled
plan of another subsystem, made for the claim. May not write to the host by itself.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from vfioctl.claims.ledger.ledger import ClaimLedger
from vfioctl.claims.ledger.rows import CLAIM
from vfioctl.claims.lifecycle.liveness import after, moment_of
from vfioctl.claims.model.claim import Claim, Claimed
from vfioctl.errors import BadSpec, NoCapacity
from vfioctl.inventory.api import Waiting
from vfioctl.placement.model.claims import Owner

if TYPE_CHECKING:
    from vfioctl.claims.lifecycle.lifecycle import Confirm, Lifecycle, Preview
    from vfioctl.claims.model.claim import Event
    from vfioctl.claims.model.documents import Nodes, Stale
    from vfioctl.claims.reconcile.reconcile import Reconciling
    from vfioctl.core.action import Progress
    from vfioctl.core.change import Plan
    from vfioctl.inventory.model.values import Subject
    from vfioctl.placement.model.capacity import Capacity, Context
    from vfioctl.placement.model.claims import Taken
    from vfioctl.placement.model.placement import Placement
    from vfioctl.placement.model.request import ClaimRequest
    from vfioctl.session import Session

NO_LABELS: Mapping[str, str] = {}
_PAUSE = 0.2


class ClaimsApi:
    """The claims of one host."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @cached_property
    def ledger(self) -> ClaimLedger:
        """The claims' part of the ledger."""
        return ClaimLedger(self._session.store, self._session.publish)

    @cached_property
    def _lifecycle(self) -> Lifecycle:
        from vfioctl.claims.lifecycle.lifecycle import Lifecycle

        return Lifecycle(self._session, self.ledger)

    # -- looking -----------------------------------------------------------------------------------

    @property
    def boot_id(self) -> str:
        """This boot's id; empty if the host does not report it."""
        return self._session.known_boot_id

    def claims(self, *, live_only: bool = True) -> tuple[Claim, ...]:
        """Return the claims, the newest first. Raises StoreDamaged."""
        return self.ledger.claims(live_only=live_only)

    def claim(self, name: str) -> Claim:
        """Return the claim with this id, or the only one whose id begins so. Raises BadSpec, StoreDamaged."""
        return self.ledger.claim(name)

    def names_of(self, owner: str) -> frozenset[str]:
        """Return what the claims that an owner has or had are called in the journal. Raises BadSpec."""
        return frozenset(f"{CLAIM}{claim}" for claim in self.ledger.once_of(Owner(owner)))

    def request(self, claim: Claim) -> Mapping[str, object]:
        """Return what a claim was made for, without values that ask for nothing."""
        return self.ledger.request(claim.id)

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
        from vfioctl.claims.lifecycle.devices import nodes_of

        return nodes_of(self._session, claim)

    def capacity(self, *, cpus: bool = False, ledger: bool = True) -> Capacity:
        """Return the host's capacity. `ledger`: whether claims count."""
        from vfioctl.placement.api import PlacementApi
        from vfioctl.placement.model.claims import Taken

        return PlacementApi(self._session).capacity(self.ledger.taken() if ledger else Taken(), cpus=cpus)

    def devices_called(self, words: Sequence[str]) -> tuple[Subject, ...]:
        """Return the functions and mediated devices with these names. Raises BadAddress, UnknownDevice, BadSpec."""
        from vfioctl.claims.lifecycle.devices import subjects
        from vfioctl.inventory.api import InventoryApi

        return subjects(InventoryApi(self._session).inventory(nvml=False, near=words), words)

    def free_vgpus(self, word: str, *, but: Collection[str] = (), exclude: Collection[str] = ()) -> tuple[Subject, ...]:
        """Return existing vGPUs of `TYPE` or `TYPE=N` that are free. `but`: see `place`. `exclude`: others' devices.

        Raises BadSpec, NoCapacity.
        """
        from vfioctl.placement.api import PlacementApi

        return PlacementApi(self._session).free_vgpus(word, self.ledger.taken(but=but), exclude)

    # -- creating ----------------------------------------------------------------------------------

    def place(
        self, request: ClaimRequest, *, but: Collection[str] = (), context: Context | None = None
    ) -> tuple[Placement, Capacity]:
        """Return what a claim would get now, and the host from which it was chosen. Changes nothing.

        `but`: the ids of claims that do not count. Raises ClaimConflict, NoCapacity, UnknownDevice.
        """
        from vfioctl.claims.lifecycle.devices import draft
        from vfioctl.placement.api import NO_CONTEXT, PlacementApi

        taken = self.ledger.taken(but=but)
        capacity = PlacementApi(self._session).read(request, taken, context or NO_CONTEXT)
        return draft(request, capacity, taken).placement, capacity

    def preview_create(self, request: ClaimRequest, key: str = "", *, over: Sequence[Claim] = ()) -> Preview:
        """Return what `create` would do. Raises what that raises before it changes anything.

        `over`: claims that will have been released by then; plans may change the devices of one of them.
        """
        return self._lifecycle.preview_create(request, key, over=over)

    def preview_release(self, claim: Claim, *, wait: float = 0.0, waiting: Waiting | None = None) -> Plan | None:
        """Return the plan that `release` would apply; None if nothing has to be changed.

        Raises DeviceInUse, Unfinished.
        """
        return self._lifecycle.preview_release(claim, wait=wait, waiting=waiting)

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
        return self._lifecycle.create(request, key, progress, confirm)

    def adopt(self, owner: str, devices: Sequence[Subject], labels: Mapping[str, str] = NO_LABELS) -> Claimed:
        """Claim devices that an owner already uses, over its quota too, which is reported. Raises ClaimConflict."""
        from vfioctl.placement.model.request import ClaimRequest

        request = ClaimRequest(owner=Owner(owner), devices=tuple(devices), bind=False, labels=labels)
        return self._lifecycle.adopt(request)

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
        return self._lifecycle.release(
            name,
            wait=wait,
            waiting=waiting,
            unchanged_in_use=unchanged_in_use,
            progress=progress,
            confirm=confirm,
        )

    def await_maker(self, name: str) -> Claim:
        """Wait until no process makes a claim any more, and return it. Raises Busy, Unfinished."""
        return self._lifecycle.liveness.awaited(self.claim(name))

    def renew(self, name: str, seconds: float | None) -> Claim:
        """Set when a live claim expires, from now on; None: never. Raises ClaimConflict, BadSpec."""
        if seconds is not None and seconds <= 0:
            raise BadSpec("a claim's term must be longer than 0 s", hint="to end it, release it")
        moment = moment_of(self._session)
        expires = after(moment.now, seconds)
        return self.ledger.amend(self.claim(name).id, moment, expires=expires, why=f"expires {expires or 'never'}")

    def transfer(self, name: str, owner: str) -> Claim:
        """Give a live claim to another owner. Raises ClaimConflict, BadSpec; NoCapacity if it is over their quota."""
        from vfioctl.placement.api import PlacementApi

        claim, new, placements = self.claim(name), Owner(owner), PlacementApi(self._session)

        def refuse(taken: Taken) -> None:
            if over := placements.over_quota(taken, new, {}, claim.gpus):
                raise NoCapacity(over, hint="release other claims of that owner, or raise the quota in config.toml")

        why = f"transferred from {claim.owner}"
        return self.ledger.amend(claim.id, moment_of(self._session), owner=new, why=why, refuse=refuse)

    def stale(self, claims: Iterable[Claim]) -> Stale:
        """Return which of these claims are stale, and why, by cheap checks only."""
        from vfioctl.claims.reconcile.staleness import stale_claims

        return stale_claims(self._session, tuple(claims), self.ledger)

    @property
    def reconciling(self) -> Reconciling:
        """Compares the ledger with the machine."""
        from vfioctl.claims.reconcile.reconcile import Reconciling

        return Reconciling(self._session, self.ledger)


def suggest_claims(session: Session, _begun: str) -> list[tuple[str, str]]:
    """Return the live claims' ids, each with its owner."""
    return [(claim.id, claim.owner) for claim in ClaimsApi(session).claims()]
