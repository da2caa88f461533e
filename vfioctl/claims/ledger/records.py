"""Keeps claims consistent with the journal: a change for a claim and the claim's state are one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import replace

from vfioctl.claims.ledger import rows
from vfioctl.claims.ledger.ledger import Moment, live, settle, verified
from vfioctl.claims.model.claim import ClaimState, Undo
from vfioctl.core.caller import this_process
from vfioctl.core.change import JournalState, Plan
from vfioctl.core.reservations import refuse_reserved

_UNDO: Mapping[str, Undo] = {"bind": Undo.UNBIND, "vgpu create": Undo.REMOVE}
"""What undoes a change that was made for a claim, by its verb."""
_WORDS = {JournalState.BACK: "rolled back", JournalState.REBOOTED: "undone by a reboot"}


class ClaimRecords:
    """See `Records`."""

    def begin(self, db: sqlite3.Connection, entry: int, plan: Plan, *, boot_id: str, now: str, acting_for: str) -> None:
        """Refuse to change what another claim has, or for a claim that has ended. Raises ClaimConflict."""
        refuse_reserved(plan, rows.reservations_in(db), acting_for=acting_for)
        if not acting_for:
            return
        claim = live(db, acting_for.removeprefix(rows.CLAIM))
        releases = claim.state is ClaimState.RELEASING
        if claim.state is ClaimState.RESERVED:  # what restores a held claim is undone as before
            undo, subjects = _UNDO[plan.intent.verb], plan.subjects
            devices = (replace(device, undo=undo) if device.subject in subjects else device for device in claim.devices)
            db.execute("UPDATE claim SET devices = ? WHERE id = ?", (rows.devices_text(devices), claim.id))
        db.execute("INSERT INTO claim_change VALUES (?, ?, ?)", (entry, claim.id, releases))

    def end(
        self, db: sqlite3.Connection, entry: int, plan: Plan, state: JournalState, *, boot_id: str, now: str
    ) -> None:
        """Set the claim's state to what the change has made of its devices."""
        row = db.execute("SELECT claim, releases FROM claim_change WHERE journal = ?", (entry,)).fetchone()
        if row is None:
            return
        db.execute("DELETE FROM claim_change WHERE journal = ?", (entry,))
        claim, moment = rows.found(db, row[0]), Moment(now, boot_id, this_process())
        restores = not row[1] and claim.state is ClaimState.HELD
        held = restores or state == (JournalState.BACK if row[1] else JournalState.DONE)
        ended = ClaimState.RELEASED if row[1] else ClaimState.FAILED
        why = "" if state == JournalState.DONE else f"its change was {_WORDS[state]}"
        settle(db, claim, ClaimState.HELD if held else ended, moment, plan=plan.id, why=why)
        if restores and state == JournalState.DONE and claim.boot_id != boot_id:
            verified(db, claim, moment)
