"""The ledger's claims: who holds what. Each method is one transaction; the tables keep two claims from one device.
Takes times, boot ids and callers as arguments. May not read the host."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from vfioctl.claims.ledger import rows, shares
from vfioctl.claims.model.claim import Claim, ClaimState, Event, Undo
from vfioctl.core.frozen import value_class
from vfioctl.core.reservations import Reservation
from vfioctl.errors import BadSpec, ClaimConflict, NoCapacity
from vfioctl.placement.model.claims import Owner, Taken
from vfioctl.placement.model.share import GpuShare

if TYPE_CHECKING:
    from vfioctl.core.change import Caller
    from vfioctl.core.store import Store
    from vfioctl.placement.model.placement import Placement
    from vfioctl.session import Session

_INSERT = f"INSERT INTO claim VALUES ({', '.join('?' * 20)})"  # noqa: S608 - constants
_EVENT = f"INSERT INTO claim_event VALUES (NULL, {', '.join('?' * 11)})"  # noqa: S608 - constants
_KEYED = "SELECT claim, request FROM claim_live JOIN claim ON claim.id = claim_live.claim WHERE claim_live.key = ?"
_SHORTEST = 4
"""Least length of the beginning of an id."""


@value_class
class Moment:
    """When a claim changes, in which boot, and by whom."""

    now: str
    boot_id: str
    caller: Caller


@value_class
class Uses:
    """The resources that a claim takes: devices by address or UUID, CPUs as `cpu 3`."""

    whole: tuple[str, ...]
    shared: tuple[str, ...] = ()
    """Those of which it takes a part: the PF of a VF, the parent of a mediated device, the GPU of a share."""
    shares: tuple[GpuShare, ...] = ()
    """Its shares, which are added up."""


class Draft(NamedTuple):
    """A claim that is not recorded yet: it has no id."""

    claim: Claim
    uses: Uses
    placement: Placement
    over_quota: str = ""
    """The quota that it exceeds, which is only reported if the owner has the devices already."""


class ClaimLedger:
    """The claims of one ledger."""

    def __init__(self, store: Store, publish: Callable[[], None]) -> None:
        """`publish`: called after each transaction that changes what ordinary users may know."""
        self._store, self._publish = store, publish

    def claims(self, *, live_only: bool = True) -> tuple[Claim, ...]:
        """Return the claims, the newest first. Raises StoreDamaged."""
        query = rows.LIVE if live_only else rows.ALL
        return self._store.read(lambda db: tuple(map(rows.claim_in, db.execute(query).fetchall())), ())

    def labelled(self, label: str) -> tuple[Claim, ...]:
        """Return the live claims with a label, the newest first. Others are not made of their rows: there may be
        thousands."""
        perhaps = (json.dumps(label),)
        found: tuple[Claim, ...] = self._store.read(
            lambda db: tuple(map(rows.claim_in, db.execute(rows.LABELLED, perhaps).fetchall())), ()
        )
        return tuple(claim for claim in found if label in claim.labels)

    def claim(self, name: str) -> Claim:
        """Return the claim with this id, or the only one whose id begins so. Raises BadSpec, StoreDamaged."""
        start = (f"{claim_id(name)}*",)
        found: tuple[Claim, ...] = self._store.read(
            lambda db: tuple(map(rows.claim_in, db.execute(rows.BEGINNING, start).fetchall())), ()
        )
        if len(found) != 1:
            what = f"{name!r} begins several ids" if found else f"there is no claim {name[:40]!r}"
            raise BadSpec(what, hint="vfioctl claim list --all shows their ids")
        return found[0]

    def request(self, id_: str) -> Mapping[str, object]:
        """Return what the claim with this id was made for, without values that ask for nothing."""
        query = "SELECT request FROM claim WHERE id = ?"
        return rows.request_in(self._store.read(lambda db: str(db.execute(query, (id_,)).fetchone()[0]), "{}"))

    def keyed(self, key: str, request: str) -> Claim | None:
        """Return the live claim with this key. Raises ClaimConflict if it was made for another request."""
        return self._store.read(lambda db: _keyed(db, key, request), None)

    def taken(self, *, but: Collection[str] = ()) -> Taken:
        """Return what live claims take. `but`: the ids of claims that do not count."""
        return self._store.read(lambda db: rows.taken_in(db, but=but), Taken())

    def events(self, *, after: int = 0, claim: str | None = None) -> tuple[Event, ...]:
        """Return events in order: those with a higher number than `after`, of one claim or of all."""
        return tuple(self._store.read(lambda db: rows.events_in(db, after=after, claim=claim), ()))

    def once_of(self, owner: Owner) -> frozenset[str]:
        """Return the ids of the claims that an owner has or had, those that have ended too."""
        query = "SELECT DISTINCT claim FROM claim_event WHERE owner = ?"
        return self._store.read(lambda db: frozenset(id_ for (id_,) in db.execute(query, (owner,))), frozenset())

    def last_event(self) -> int:
        """Return the number of the newest event; 0 if there is none."""
        query = "SELECT coalesce(max(number), 0) FROM claim_event"
        return self._store.read(lambda db: int(db.execute(query).fetchone()[0]), 0)

    def is_changing(self, id_: str) -> bool:
        """Return whether a change for this claim is under way, or was interrupted."""
        query = "SELECT 1 FROM claim_change WHERE claim = ?"
        return self._store.read(lambda db: db.execute(query, (id_,)).fetchone() is not None, empty=False)

    def changing(self) -> frozenset[str]:
        """Return the ids of the claims for which `is_changing` is true."""
        query = "SELECT DISTINCT claim FROM claim_change"
        return self._store.read(lambda db: frozenset(id_ for (id_,) in db.execute(query)), frozenset())

    def reserve(
        self, make_draft: Callable[[Taken], Draft], request: str, key: str, moment: Moment
    ) -> tuple[Claim, Draft | None]:
        """Record what `make_draft` makes of what is taken already: return the claim and its draft, or a live claim with
        the same key and request, without a draft. Raises ClaimConflict, and what `make_draft` raises."""
        with self._store.transaction() as db:
            if key and (known := _keyed(db, key, request)):
                return known, None
            draft = make_draft(rows.taken_in(db))
            claim = draft.claim._replace(id=_unused_id(db), key=key, since=moment.now, boot_id=moment.boot_id)
            claim = claim._replace(**moment.caller.model_dump())
            db.execute(_INSERT, rows.columns_of(claim, request))
            db.execute("INSERT INTO claim_live VALUES (?, ?)", (claim.id, key or None))
            _take(db, claim.id, draft.uses)
            note(db, claim, moment)
        self._publish()
        return claim, draft

    def move(self, id_: str, state: ClaimState, moment: Moment, *, why: str = "") -> Claim:
        """Set the state of a live claim. One that is released or failed gives back what it took."""
        with self._store.transaction() as db:
            claim = settle(db, live(db, id_), state, moment, why=why)
        self._publish()
        return claim

    def amend(
        self,
        id_: str,
        moment: Moment,
        *,
        owner: Owner | None = None,
        labels: Mapping[str, str] | None = None,
        expires: str | None = None,
        why: str,
        refuse: Callable[[Taken], None] | None = None,
    ) -> Claim:
        """Give a live claim to another owner, with these labels, or another term. `why`: what was done, for its events.
        `refuse`: called with what other claims take, in the same transaction; may raise."""
        with self._store.transaction() as db:
            claim = live(db, id_)
            if refuse:
                refuse(rows.taken_in(db, but=(id_,)))
            changed = claim._replace(owner=owner or claim.owner, expires=expires if owner is None else claim.expires)
            changed = changed if labels is None else changed._replace(labels=labels)
            values = (changed.owner, changed.expires, rows.labels_text(changed.labels), id_)
            db.execute("UPDATE claim SET owner = ?, expires = ?, labels = ? WHERE id = ?", values)
            note(db, changed, moment, why=why)
        self._publish()
        return changed

    def restored(self, id_: str, moment: Moment) -> Claim:
        """Record that a claim was verified in this boot. What it changed before the reboot is not to be undone."""
        with self._store.transaction() as db:
            claim = live(db, id_)
            devices = tuple(replace(device, undo=Undo.NOTHING) for device in claim.devices)
            changed = claim._replace(devices=devices, boot_id=moment.boot_id)
            db.execute("UPDATE claim SET devices = ? WHERE id = ?", (rows.devices_text(devices), id_))
            verified(db, changed, moment)
        self._publish()
        return changed


def claim_id(name: str) -> str:
    """Return the beginning of an id that a user named. Raises BadSpec."""
    if len(name) < _SHORTEST or not name.isalnum():
        raise BadSpec(f"not a claim: {name[:40]!r}", hint="vfioctl claim list shows their ids")
    return name.lower()


def settle(
    db: sqlite3.Connection, claim: Claim, state: ClaimState, moment: Moment, *, plan: str = "", why: str = ""
) -> Claim:
    """Set a claim's state in a transaction. One that is released or failed gives back what it took."""
    changed = claim._replace(state=state, why=why, plans=(*claim.plans, plan) if plan else claim.plans)
    if not changed.is_live:
        changed = changed._replace(ended=moment.now)
        db.execute("DELETE FROM claim_part WHERE claim = ?", (claim.id,))
        shares.subtract(db, claim.shares)
        db.execute("DELETE FROM claim_use WHERE claim = ?", (claim.id,))
        db.execute("DELETE FROM claim_use WHERE mode = 'shared' AND resource NOT IN (SELECT resource FROM claim_part)")
        db.execute("DELETE FROM claim_live WHERE claim = ?", (claim.id,))
    db.execute(
        "UPDATE claim SET state = ?, why = ?, ended = ?, plans = ? WHERE id = ?",
        (changed.state, changed.why, changed.ended, " ".join(changed.plans), claim.id),
    )
    note(db, changed, moment, plan=plan, why=why)
    return changed


def verified(db: sqlite3.Connection, claim: Claim, moment: Moment) -> None:
    """Record the boot in which a claim's devices were found again, in a transaction."""
    db.execute("UPDATE claim SET boot_id = ? WHERE id = ?", (moment.boot_id, claim.id))
    note(db, claim, moment, why="restored after a reboot")


def note(db: sqlite3.Connection, claim: Claim, moment: Moment, *, plan: str = "", why: str = "") -> None:
    """Record an event of a claim in a transaction."""
    caller = moment.caller
    who = (caller.user, caller.sudo_user, caller.pid, caller.command)
    db.execute(_EVENT, (claim.id, claim.state, claim.owner, moment.now, moment.boot_id, *who, plan, why))


def _take(db: sqlite3.Connection, claim: str, uses: Uses) -> None:
    share = "INSERT INTO claim_use VALUES (?, 'shared', NULL) ON CONFLICT (resource) DO NOTHING"
    try:
        for resource in uses.whole:
            db.execute("INSERT INTO claim_use VALUES (?, 'whole', ?)", (resource, claim))
        for resource in uses.shared:
            db.execute(share, (resource,))
            db.execute("INSERT INTO claim_part VALUES (?, ?, 'shared')", (claim, resource))
        for given in uses.shares:
            shares.add(db, given)
    except shares.NoRoom as error:
        raise NoCapacity(f"{error} has less free than the share needs", next_command="vfioctl claim list") from None
    except sqlite3.IntegrityError:
        known = rows.reservations_in(db, cpus=True)
        raise next(taken.conflict() for taken in known if taken.subject == resource) from None


def _keyed(db: sqlite3.Connection, key: str, request: str) -> Claim | None:
    row = db.execute(_KEYED, (key,)).fetchone()
    if row is None:
        return None
    claim = rows.found(db, row[0])
    if row[1] != request:
        raise ClaimConflict(
            f"the key {key!r} belongs to claim {claim.id} of {claim.owner}, which was made for another request"
            f"{rows.differing(row[1], request)}",
            hint="use another key",
            next_command=f"vfioctl claim show {claim.id}",
            facts={"claim": claim.id, "owner": claim.owner},
        )
    return claim


def live(db: sqlite3.Connection, id_: str) -> Claim:
    """Return a live claim. Raises ClaimConflict for one that has ended meanwhile."""
    claim = rows.found(db, id_)
    if not claim.is_live:
        raise ClaimConflict(f"claim {id_} of {claim.owner} is {claim.state} already", hint="make a new one")
    return claim


def _unused_id(db: sqlite3.Connection) -> str:
    while True:
        identifier = os.urandom(4).hex()
        if db.execute("SELECT 1 FROM claim WHERE id = ?", (identifier,)).fetchone() is None:
            return identifier


def reservations(session: Session) -> tuple[Reservation, ...]:
    """Return what live claims reserve. Raises StoreDamaged, KernelRefused."""
    nothing: tuple[Reservation, ...] = ()
    return session.ask_ledger(
        lambda store: store.read(lambda db: tuple(rows.reservations_in(db)), nothing),
        lambda document: tuple(rows.reservations_published(document.records.get("claims"))),
        nothing,
    )
