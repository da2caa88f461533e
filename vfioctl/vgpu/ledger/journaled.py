"""Finds in the journal how vGPUs were created, so that those which a reboot lost can be created again. Reads only."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from vfioctl.core.reservations import whole_devices
from vfioctl.errors import BadDocument
from vfioctl.inventory.model.scope import FUNCTION
from vfioctl.vgpu.model.kinds import creates, is_uuid, place_and_type
from vfioctl.vgpu.model.vgpu import Made, Vgpus, VgpuState
from vfioctl.vgpu.placement.reserved import Reserved, without_claimed

if TYPE_CHECKING:
    from vfioctl.core.change import Plan
    from vfioctl.session import Session

_CREATIONS = "SELECT plan FROM journal WHERE state = 'done' AND instr(plan, 'vgpu create') ORDER BY id DESC"
_SUBJECT = re.compile(r'"subject":"([^"]+)"')
"""Parsing all plans takes much longer."""


def read_made(session: Session, names: Collection[str]) -> Mapping[str, Made]:
    """Return how vGPUs were created last, by id; without those that the journal does not have. Raises StoreDamaged."""
    left, created = set(names), dict[str, Made]()

    def ask(db: sqlite3.Connection) -> list[str]:
        return [text for (text,) in db.execute(_CREATIONS) if not left.isdisjoint(_SUBJECT.findall(text))]

    none: list[str] = []
    for text in session.store.read(ask, none) if left else none:
        if not left.isdisjoint(_SUBJECT.findall(text)):
            with suppress(BadDocument):  # of an earlier release
                made = _made_by(session.registry.read_plan(text))
                created |= {name: made[name] for name in left.intersection(made)}
                left -= made.keys()
    return created


def claimed_and_lost(session: Session, vgpus: Vgpus) -> tuple[Reserved, ...]:
    """Return the vGPUs that others have reserved and that do not exist now, as after a reboot. The journal tells their
    types. Users who may not read it do not learn of them: they cannot create vGPUs either."""
    existing = {vgpu.id for vgpu in vgpus.instances if vgpu.state is not VgpuState.DEFINED}
    places = {parent.name for card in vgpus.cards for parent in card.parents if parent.name != card.id}
    reservations = session.known_reservations()[0]
    lost = {
        subject: reservation
        for subject, reservation in whole_devices(reservations).items()
        if reservation.by != session.reservation
        if subject not in existing and (subject in places or is_uuid(subject))
    }
    none: Mapping[str, Made] = {}
    made = session.from_ledger(partial(read_made, session, lost), none)[0]
    return tuple(
        Reserved(name, how.parent, how.type, f"{lost[name].by} of {lost[name].owner}", lost[name].release)
        for name, how in sorted(made.items())
    )


def without_claimed_room(session: Session, vgpus: Vgpus) -> Vgpus:
    """The same vGPUs, and cards with the room that claims leave: lost vGPUs of others keep theirs until the release."""
    return replace(vgpus, cards=without_claimed(vgpus.cards, claimed_and_lost(session, vgpus)))


def _made_by(plan: Plan) -> Mapping[str, Made]:
    from vfioctl.vgpu.model.intents import CreateVgpuIntent

    identities = {fact.subject: str(fact.values.get("identity", "")) for fact in plan.facts_of(FUNCTION)}
    parameters = plan.intent.parameters if isinstance(plan.intent, CreateVgpuIntent) else ()
    created = {}
    for change in plan.changes:
        if creates(change):
            parent, kind = place_and_type(change)
            created[change.subject] = Made(parent, kind, parameters, identities.get(parent, ""))
    return created
