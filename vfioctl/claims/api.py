"""The use cases of claims: create, list, release, renew, transfer, adopt, watch. May not write to the host by itself:
a claim is in the ledger first, and each change of its devices is a journaled plan of another subsystem, made for it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from vfioctl.claims.ledger.ledger import claim_id
from vfioctl.claims.ledger.rows import CLAIM, claims_published
from vfioctl.claims.lifecycle.creation import Creation
from vfioctl.claims.lifecycle.lifecycle import ADOPTED
from vfioctl.claims.lifecycle.liveness import after, moment_of, stale_claims
from vfioctl.claims.model.access import ACCESS, Access
from vfioctl.claims.model.claim import Claim, Claimed, ClaimState
from vfioctl.errors import BadSpec, NoCapacity, NotPermitted
from vfioctl.inventory.api import InventoryApi, Waiting, until_released
from vfioctl.placement.model.claims import PROVISIONAL, Owner
from vfioctl.signals import deferred

if TYPE_CHECKING:
    from vfioctl.claims.model.claim import Event, Nodes, Stale
    from vfioctl.claims.probe.owners import Container
    from vfioctl.claims.reconcile.reconcile import Reconciling
    from vfioctl.core.change import Plan
    from vfioctl.core.events import Cancel
    from vfioctl.inventory.model.values import Subject
    from vfioctl.placement.model.capacity import Capacity, Context
    from vfioctl.placement.model.claims import Taken
    from vfioctl.placement.model.placement import Placement
    from vfioctl.placement.model.request import ClaimRequest
    from vfioctl.session import Session

NO_LABELS: Mapping[str, str] = {}
_PAUSE, _LONGEST_PAUSE = 0.2, 2.0
"""Seconds between looks at the ledger's files, and at most between two readings: equal stamps are no proof."""
_MEMORY = "c 1:1"
"""The number of /dev/mem, which only privileged containers have (Linux, Documentation/admin-guide/devices.txt)."""
ENDED = "only root may read claims that have ended"


class ClaimsApi(Creation):
    """The claims of one host."""

    @property
    def boot_id(self) -> str:
        """This boot's id; empty if the host does not report it."""
        return self._session.known_boot_id

    def claims(self, *, live_only: bool = True) -> tuple[Claim, ...]:
        """Return the claims, the newest first. Raises StoreDamaged; NotPermitted for ordinary users who want all.

        Ordinary users get what root publishes: no labels, keys, command lines, nor what went wrong, unless they are
        members of the group vfioctl."""
        if not self._session.reads_published:
            return self.ledger.claims(live_only=live_only)
        if not live_only:
            raise NotPermitted(ENDED, hint="run it as root")
        return claims_published(self._session.published.read().records.get("claims"))

    def labelled(self, label: str) -> tuple[Claim, ...]:
        """Return the live claims with a label, the newest first; none for users to whom labels are not published."""
        if self._session.reads_published:
            return tuple(claim for claim in self.claims() if label in claim.labels)
        return self.ledger.labelled(label)

    def hides_labels(self, claims: Collection[Claim]) -> bool:
        """Return whether the labels of these claims are not published to this user. The command lines are not, either,
        and each claim has one."""
        return self._session.reads_published and bool(claims) and not any(claim.command for claim in claims)

    def claim(self, name: str) -> Claim:
        """Return the claim with this id, or the only one whose id begins so. Raises BadSpec, StoreDamaged; NotPermitted
        for one that only root may read."""
        if not self._session.reads_published:
            return self.ledger.claim(name)
        begun = claim_id(name)
        known = [claim for claim in self.claims() if claim.id.startswith(begun)]
        if len(known) != 1:
            what = f"{name!r} begins several ids" if known else f"there is no live claim {name[:40]!r}; {ENDED}"
            raise (BadSpec if known else NotPermitted)(what, hint="vfioctl claim list shows their ids")
        return known[0]

    def names_of(self, owner: str) -> frozenset[str]:
        """Return what the claims that an owner has or had are called in the journal. Raises BadSpec, NotPermitted."""
        if self._session.reads_published:
            raise NotPermitted(ENDED, hint="run it as root")
        return frozenset(f"{CLAIM}{claim}" for claim in self.ledger.once_of(Owner(owner)))

    def request(self, claim: Claim) -> Mapping[str, object]:
        """Return what a claim was made for, without values that ask for nothing. Only root may read it."""
        return {} if self._session.reads_published else self.ledger.request(claim.id)

    def events(self, claim: Claim) -> tuple[Event, ...]:
        """Return what happened to a claim, in order. Only root may read it."""
        return () if self._session.reads_published else self.ledger.events(claim=claim.id)

    def watch(self) -> Iterator[Event]:
        """Yield each change of a claim from now on. Never ends. Reads the ledger when its files have changed."""
        stamp, last, due = self._session.ledger_stamp(), self.ledger.last_event(), 0.0
        while True:
            before, stamp = stamp, self._session.ledger_stamp()
            if stamp != before or time.monotonic() >= due:
                due = time.monotonic() + _LONGEST_PAUSE
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
        from vfioctl.placement.model.claims import Taken

        return self._placement.capacity(self.ledger.taken() if ledger else Taken(), cpus=cpus)

    def devices_called(self, words: Sequence[str]) -> tuple[Subject, ...]:
        """Return the functions and mediated devices with these names. Raises BadAddress, UnknownDevice, BadSpec."""
        from vfioctl.claims.lifecycle.devices import subjects

        return subjects(InventoryApi(self._session).inventory(nvml=False, near=words), words)

    def free_vgpus(self, word: str, *, but: Collection[str] = (), exclude: Collection[str] = ()) -> tuple[Subject, ...]:
        """Return existing vGPUs of `TYPE` or `TYPE=N` that are free. Raises BadSpec, NoCapacity.
        `but`: see `place`. `exclude`: others' devices."""
        return self._placement.free_vgpus(word, self.ledger.taken(but=but), exclude)

    def place(
        self, request: ClaimRequest, *, but: Collection[str] = (), context: Context | None = None
    ) -> tuple[Placement, Capacity]:
        """Return what a claim would get now, and the host from which it was chosen. Changes nothing.
        `but`: the ids of claims that do not count. Raises ClaimConflict, NoCapacity, UnknownDevice."""
        from vfioctl.claims.lifecycle.devices import draft
        from vfioctl.placement.api import NO_CONTEXT

        taken = self.ledger.taken(but=but)
        capacity = self._placement.read(request, taken, context or NO_CONTEXT)
        return draft(request, capacity, taken).placement, capacity

    def refuse_in_use(self, claim: Claim, *, wait: float = 0.0, cancel: Cancel | None = None) -> None:
        """Raise DeviceInUse while a process has a VFIO device of the claim open. `wait`: seconds to wait for it."""
        from vfioctl.claims.lifecycle.device_plans import refuse_held

        def refuse() -> None:
            inventory = InventoryApi(self._session).inventory(nvml=False, near=claim.functions)
            refuse_held(self._session, claim, inventory, drivers=False)

        until_released(refuse, wait=wait, cancel=cancel)

    def preview_release(self, claim: Claim, *, wait: float = 0.0, waiting: Waiting | None = None) -> Plan | None:
        """Return the plan of `release`; None if nothing has to be changed. Raises DeviceInUse, Unfinished."""
        claim = self._liveness.settled(claim)
        is_over = not claim.is_live or self._liveness.has_died(claim)
        return None if is_over else until_released(self._undo(claim), wait=wait, waiting=waiting)

    def adopt(self, owner: str, devices: Sequence[Subject], labels: Mapping[str, str] = NO_LABELS) -> Claimed:
        """Claim devices that an owner already uses, over its quota too, which is reported. Raises ClaimConflict."""
        from vfioctl.claims.lifecycle.devices import draft
        from vfioctl.placement.model.request import ClaimRequest

        request = ClaimRequest(owner=Owner(owner), devices=tuple(devices), bind=False, labels=labels)
        capacity, moment = self._placement.read(request, self.ledger.taken()), moment_of(self._session)
        make_draft = partial(draft, request, capacity, as_they_are=True)
        with deferred():  # a claim that is reserved, and not yet held, has failed
            claim, made = self.ledger.reserve(make_draft, request.canonical(), "", moment)
            held = self.ledger.move(claim.id, ClaimState.HELD, moment_of(self._session), why=ADOPTED)
        claimed = self._followed(Claimed(held))
        over = made.over_quota if made else ""
        return claimed._replace(problem="; ".join(filter(None, [over, claimed.problem])))

    def await_maker(self, name: str) -> Claim:
        """Wait until no process makes a claim any more, and return it. Raises Busy, Unfinished."""
        return self._liveness.awaited(self.claim(name))

    def finish(self, claim: Claim) -> Claim:
        """Return a claim after recovering what interrupted its making or its release: failed, or held again, if its
        process died before it changed anything. Raises Busy while a process works on it, and Stuck."""
        self._session.engine.recover(forward=False, made_for=[f"{CLAIM}{claim.id}"])
        claim = self.ledger.claim(claim.id)
        if self._liveness.has_died(claim):
            return self._liveness.end(claim)
        if claim.state is ClaimState.RELEASING and claim.id in self.stale([claim]):
            why = "its release was interrupted before any change"
            return self.ledger.move(claim.id, ClaimState.HELD, moment_of(self._session), why=why)
        return claim

    def containers(self) -> tuple[Container, ...]:
        """Return the containers that runtimes know, and that belong to a pod or have device files."""
        from vfioctl.claims.probe.owners import read_containers

        return read_containers(self._session.kernel).found

    def containers_with(self, claim: Claim) -> tuple[str, ...] | None:
        """Return the running containers of the claim's owner that were given a device node of it, of any owner for one
        whose pod is not known yet; None if no runtime tells of pods. They need not have it open. A privileged container
        was given all nodes of the host, and counts only as the owner. A share has no node of its own: all of its owner
        count."""
        from vfioctl.claims.probe.owners import read_containers
        from vfioctl.kernel.lenient import number_of

        containers = read_containers(self._session.kernel)
        if not any(container.pod for container in containers.found) or containers.unknown:
            return None
        if claim.shares:
            return tuple(container.pod for container in containers.found if container.pod == claim.owner.name)
        nodes = {node for nodes in self.nodes(claim).values() for node in nodes if node}
        numbers = {number_of(self._session.kernel, node) for node in nodes}
        return tuple(
            container.pod
            for container in containers.found
            if (not nodes.isdisjoint(container.nodes) or not numbers.isdisjoint(container.numbers))
            and (container.pod == claim.owner.name or (claim.owner == PROVISIONAL and _MEMORY not in container.numbers))
        )

    def renew(self, name: str, seconds: float | None) -> Claim:
        """Set when a live claim expires, from now on; None: never. Raises ClaimConflict, BadSpec."""
        if seconds is not None and seconds <= 0:
            raise BadSpec("a claim's term must be longer than 0 s", hint="to end it, release it")
        moment = moment_of(self._session)
        expires = after(moment.now, seconds)
        return self.ledger.amend(self.claim(name).id, moment, expires=expires, why=f"expires {expires or 'never'}")

    def relabel(self, name: str, labels: Mapping[str, str], *, why: str) -> Claim:
        """Give a live claim other labels. `why`: what was done, for its events. Raises BadSpec."""
        claim = self.claim(name)
        return self.ledger.amend(claim.id, moment_of(self._session), labels=labels, expires=claim.expires, why=why)

    def transfer(self, name: str, owner: str, access: Access | None = None, *, within_quota: bool = True) -> Claimed:
        """Give a live claim to another owner. `access`: who may open its device nodes from now on; those who might
        before may not. `within_quota`: False for one that has the devices already. Raises ClaimConflict, BadSpec;
        NoCapacity if it is over their quota."""
        claim, new = self.claim(name), Owner(owner)
        if claim.shares and (new.kind == "vm" or access):
            raise BadSpec("a GPU with its host driver is for containers and users", hint="make a new claim for the VM")

        def refuse(taken: Taken) -> None:
            if within_quota and (over := self._placement.over_quota(taken, new, {}, claim.gpus)):
                raise NoCapacity(over, hint="release other claims of that owner, or raise the quota in config.toml")

        why = f"transferred from {claim.owner}"
        labels = {key: value for key, value in claim.labels.items() if key != ACCESS}
        labels |= {ACCESS: access.text} if access else {}
        moment = moment_of(self._session)
        given = self.ledger.amend(claim.id, moment, owner=new, labels=labels, why=why, refuse=refuse)
        return self._followed(Claimed(given))

    def stale(self, claims: Iterable[Claim]) -> Stale:
        """Return which of these claims are stale, and why, by cheap checks only."""
        if self._session.reads_published:  # which process releases one is not published
            claims = [claim for claim in claims if claim.state is not ClaimState.RELEASING]
        return stale_claims(self._session, tuple(claims), self.ledger)

    @property
    def reconciling(self) -> Reconciling:
        """Compares the ledger with the machine."""
        from vfioctl.claims.reconcile.reconcile import Reconciling

        return Reconciling(self._session, self)


def suggest_claims(session: Session, _begun: str) -> list[tuple[str, str]]:
    """Return the live claims' ids, each with its owner."""
    return [(claim.id, claim.owner) for claim in ClaimsApi(session).claims()]


def suggest_owners(session: Session, begun: str) -> list[tuple[str, str]]:
    """Return the owners of live claims that begin so, each with the number of its claims."""
    held = Counter(claim.owner for claim in ClaimsApi(session).claims() if claim.owner.startswith(begun))
    return [(owner, f"{number} claim{'s' * (number > 1)}") for owner, number in sorted(held.items())]
