"""Reads claims from the ledger's rows. May not write, nor import pydantic, which slows listings."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from shlex import quote
from typing import Any

from vfioctl.claims.ledger.shares import NO_SHARES, shares_in, shares_text
from vfioctl.claims.model.claim import LABEL, Claim, ClaimedDevice, ClaimState, Event, Undo
from vfioctl.core.published import texts
from vfioctl.core.reservations import Reservation
from vfioctl.errors import RequestError, StoreDamaged
from vfioctl.placement.model.claims import Hugepages, Owner, Taken
from vfioctl.placement.model.share import by_gpu
from vfioctl.units import Uuid, format_cpu_list, parse_cpu_list
from vfioctl.untrusted_text import parse_json

CLAIM = "claim "
"""How a claim is called where it reserves a device, before its id."""
CPU = "cpu "
"""How the resource of a CPU begins; devices are named by their address or UUID."""
_COLUMNS = (
    "claim.id, claim.owner, state, devices, since, boot_id, cpus, hugepages, claim.key, labels, expires, ended, why, "
    "user, sudo_user, pid, command, plans, shares"
)
ALL = f"SELECT {_COLUMNS} FROM claim ORDER BY claim.rowid DESC"  # noqa: S608 - constants
# CROSS JOIN: live claims are few, those that have ended may be many thousands, and SQLite would walk all of these
LIVE = f"""
    SELECT {_COLUMNS} FROM claim_live CROSS JOIN claim ON claim.id = claim_live.claim ORDER BY claim.rowid DESC
"""  # noqa: S608 - constants
LABELLED = f"""
    SELECT {_COLUMNS} FROM claim_live CROSS JOIN claim ON claim.id = claim_live.claim WHERE instr(labels, ?)
    ORDER BY claim.rowid DESC
"""  # noqa: S608 - constants
PUBLIC = """
    SELECT claim.id, claim.owner, state, devices, since, boot_id, cpus, hugepages, '', '{}', expires, NULL, '',
        user, sudo_user, pid, '', plans, shares
    FROM claim_live CROSS JOIN claim ON claim.id = claim_live.claim ORDER BY claim.rowid DESC LIMIT ?
"""
"""What ordinary users may know: not the key, which repeats a request, nor the labels, the command line and what went
wrong, in which people and programs may have written anything."""
MOST_PUBLISHED = 2000
"""So many of the newest live claims are published."""
FOR_GROUP = f"{LIVE} LIMIT ?"
"""What members of the group vfioctl may know: all of it."""
BEGINNING = f"SELECT {_COLUMNS} FROM claim WHERE id GLOB ? LIMIT 2"  # noqa: S608 - constants
ONE = f"SELECT {_COLUMNS} FROM claim WHERE id = ?"  # noqa: S608 - constants
_WHOLE = """
    SELECT resource, claim_use.claim, owner, labels, '[]' FROM claim_use CROSS JOIN claim ON claim.id = claim_use.claim
    ORDER BY claim_use.rowid
"""
_SHARED = """
    SELECT resource, claim_part.claim, owner, labels, shares
    FROM claim_part CROSS JOIN claim ON claim.id = claim_part.claim
    ORDER BY claim_part.rowid
"""


def claim_in(row: tuple[Any, ...]) -> Claim:
    """Return the claim in a row of these queries. Raises ValueError."""
    (id_, owner, state, devices, since, boot_id, cpus, hugepages, key, labels, expires, ended, why, *more) = row
    user, sudo_user, pid, command, plans, *shares = more  # earlier releases published no shares
    try:
        return Claim(
            id=id_,
            owner=_owner(owner),
            state=_STATES[state],
            devices=_devices_in(devices),
            since=_time(since),
            boot_id=boot_id,
            cpus=parse_cpu_list(cpus) if cpus else (),
            hugepages=() if hugepages == "[]" else tuple(Hugepages(*load) for load in parse_json(hugepages)),
            key=key,
            labels=_labels_in(labels),
            expires=None if expires is None else _time(expires),
            ended=None if ended is None else _time(ended),
            why=why,
            user=user,
            sudo_user=sudo_user,
            pid=pid,
            command=command,
            plans=tuple(plans.split()),
            shares=shares_in(shares[0]) if shares else (),
        )
    except (RequestError, TypeError, LookupError, AttributeError) as error:
        raise ValueError(f"claim {id_} is not readable: {error}") from None


_STATES = {str(state): state for state in ClaimState}


@lru_cache(maxsize=4096)  # few owners have thousands of claims
def _owner(text: str) -> Owner:
    return Owner(text)


def _time(text: str) -> str:
    """Return a time as the ledger writes it. Raises ValueError for another text, TypeError for none."""
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("a time without an offset")
    return text


def found(db: sqlite3.Connection, id_: str) -> Claim:
    """Return the claim with this id, which is there. Raises ValueError."""
    return claim_in(db.execute(ONE, (id_,)).fetchone())


def columns_of(claim: Claim, request: str) -> tuple[object, ...]:
    """Return the row of a claim for `INSERT INTO claim`."""
    return (
        claim.id,
        claim.owner,
        claim.state,
        request,
        claim.key,
        devices_text(claim.devices),
        format_cpu_list(claim.cpus),
        json.dumps(claim.hugepages),
        labels_text(claim.labels),
        claim.since,
        claim.boot_id,
        claim.expires,
        claim.ended,
        " ".join(claim.plans),
        claim.why,
        claim.user,
        claim.sudo_user,
        claim.pid,
        claim.command,
        shares_text(claim.shares),
    )


def devices_text(devices: Iterable[ClaimedDevice]) -> str:
    """Return devices as the ledger holds them."""
    return json.dumps([vars(device) for device in devices])


@lru_cache(maxsize=4096)  # a host's few devices have many claims, one after the other
def _devices_in(text: str) -> tuple[ClaimedDevice, ...]:
    return tuple(map(_device_in, parse_json(text)))


def _device_in(document: Any) -> ClaimedDevice:
    return ClaimedDevice(
        address=str(document["address"]),
        mdev=None if document["mdev"] is None else Uuid(document["mdev"]),
        identity=str(document["identity"]),
        asked=bool(document["asked"]),
        undo=Undo(document["undo"]),
    )


def taken_in(db: sqlite3.Connection, *, but: Collection[str] = ()) -> Taken:
    """Return what live claims take. `but`: the ids of claims that do not count. Raises ValueError."""
    used = {resource: (id_, _owner(owner)) for resource, id_, owner, *_ in db.execute(_WHOLE) if id_ not in but}
    cpus = {int(name.removeprefix(CPU)): by for name, by in used.items() if name.startswith(CPU)}
    whole = {name: by for name, by in used.items() if not name.startswith(CPU)}
    shared: dict[str, tuple[tuple[str, Owner], ...]] = {}
    for resource, claim, owner, *_ in db.execute(_SHARED):
        if claim not in but:
            shared[resource] = (*shared.get(resource, ()), (claim, _owner(owner)))
    claims = [claim for claim in map(claim_in, db.execute(LIVE)) if claim.id not in but]
    pages: Counter[tuple[int, int]] = Counter()
    owners: Counter[Owner] = Counter()
    labels: Counter[tuple[str, str]] = Counter()
    for claim in claims:
        gpus = claim.gpus
        owners[claim.owner] += gpus
        labels.update(dict.fromkeys(claim.labels.items(), gpus))
        pages.update({(size.node, size.size): size.pages for size in claim.hugepages})
    releases = {claim.id: _release(claim.id, claim.owner, claim.labels) for claim in claims}
    return Taken(
        whole, shared, cpus, pages, by_gpu(share for c in claims for share in c.shares), owners, labels, releases
    )


def reservations_in(db: sqlite3.Connection, *, cpus: bool = False) -> Iterator[Reservation]:
    """Yield the devices that live claims have, or of which they have parts. `cpus`: also their CPUs."""
    for query, whole in ((_WHOLE, True), (_SHARED, False)):
        for resource, claim, owner, labels, shares in db.execute(query):
            if cpus or not resource.startswith(CPU):
                release = _release(claim, _owner(owner), _labels_in(labels))
                is_share = shares != NO_SHARES  # while a GPU is shared among containers, no vGPU is created on it
                yield Reservation(resource, f"{CLAIM}{claim}", owner, whole or is_share, release, is_share)


def reservations_published(records: Any) -> Iterator[Reservation]:
    """Yield the same as root has published it. Raises StoreDamaged."""
    try:
        for subject, by, owner, whole, release, *more in _reservations(records):
            texts((subject, by, owner, release), 4)
            yield Reservation(subject, by, owner, whole is True, release, more == [True])
    except (TypeError, ValueError, KeyError):
        raise StoreDamaged("what root publishes of the ledger has no records of claims") from None


def _reservations(records: Any) -> Any:
    return records if isinstance(records, list) else records["reservations"]  # earlier releases published nothing else


def claims_published(records: Any) -> tuple[Claim, ...]:
    """Return the live claims that root has published, the newest first. Raises StoreDamaged."""
    try:
        return tuple(claim_in(tuple(row)) for row in records["live"])
    except (TypeError, ValueError, KeyError):
        raise StoreDamaged(
            "what root publishes of the ledger has no claims",
            hint="run it as root; the next change as root publishes it",
        ) from None


def labels_text(labels: Mapping[str, str]) -> str:
    return json.dumps(dict(labels))


def _labels_in(text: str) -> dict[str, str]:
    labels = {} if text == "{}" else parse_json(text)
    if not isinstance(labels, dict):
        raise ValueError("the labels of a claim are no object")  # noqa: TRY004 - the ledger is wrong, not the caller
    return {str(name): str(value) for name, value in labels.items()}


def _release(claim: str, owner: Owner, labels: Mapping[str, str]) -> str:
    """Return the command that ends a claim. One that was made for a run of a domain ends with the domain."""
    if owner.kind == "vm" and LABEL in labels:
        return f"vfioctl domain stop {quote(owner.name)} --connect {quote(labels[LABEL])}"
    return f"vfioctl claim release {claim}"


def request_in(text: str) -> dict[str, Any]:
    """Return the values of a request that ask for something, by name; none if the text is not understood."""
    try:
        document = parse_json(text)
    except ValueError:
        return {}
    if not isinstance(document, dict):
        return {}
    idle = {"numa": "any", "bind": True, "vgpus": 0 if document.get("vgpu") else 1}
    means_something = ("bind", "numa")  # also where it is false or 0
    changed = {name: value for name, value in document.items() if value != idle.get(name)}
    return {name: value for name, value in changed.items() if value or name in means_something}


def differing(before: str, now: str) -> str:
    """Return how two requests differ, as the end of a sentence; empty if they are not understood."""
    old, new = request_in(before), request_in(now)
    names = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    words = (f"{name} was {_said(old, name)} and is {_said(new, name)}" for name in names)
    return f": {', '.join(words)}" if names else ""


def _said(request: dict[str, Any], name: str) -> str:
    return json.dumps(request[name], ensure_ascii=False) if name in request else "not given"


def events_in(db: sqlite3.Connection, *, after: int = 0, claim: str | None = None) -> Iterable[Event]:
    """Return events in order: those with a higher number than `after`, of one claim or of all."""
    rows = db.execute(
        "SELECT number, claim, state, owner, at, boot_id, user, sudo_user, pid, command, plan, why FROM claim_event "
        "WHERE number > ?1 AND (?2 IS NULL OR claim = ?2) ORDER BY number",
        (after, claim),
    )
    return [Event(*row) for row in rows.fetchall()]
