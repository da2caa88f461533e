"""Records the vGPUs and VFs that vfioctl created, and the names of types, in the ledger with the journal."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from vfioctl.core.change import JournalState, Plan
from vfioctl.errors import Foreign
from vfioctl.vgpu.ledger.reading import CREATED
from vfioctl.vgpu.model.intents import RemoveVgpuIntent
from vfioctl.vgpu.model.kinds import CHECK, DEFINITION, VF_COUNTS, VGPU_TYPE, changes_vfs, creates, keeps, removes
from vfioctl.vgpu.model.report import type_names_in

# Earlier records of the same vGPU are kept: they are valid again after a rollback. A definition stays persistent.
_OWN = """
    INSERT INTO vgpu (id, card, place, persistent, boot_id, since, journal)
    VALUES (?1, ?2, ?3, max(?4, EXISTS (SELECT 1 FROM vgpu WHERE id = ?1 AND persistent)), ?5, ?6, ?7)
"""
_REPLACED = "DELETE FROM vgpu WHERE journal < ?1 AND id IN (SELECT id FROM vgpu WHERE journal = ?1)"


class VgpuRecords:
    """See `Records`."""

    def begin(self, db: sqlite3.Connection, entry: int, plan: Plan, *, boot_id: str, now: str, acting_for: str) -> None:
        """Also deletes records of earlier boots. Raises Foreign when vfioctl did not create a vGPU."""
        _refuse_foreign(db, plan, boot_id)
        db.execute("DELETE FROM vgpu WHERE boot_id != ? AND NOT persistent", (boot_id,))
        names = ((card, i, name, boot_id) for card, types in type_names_in(plan).items() for i, name in types.items())
        db.executemany("INSERT OR REPLACE INTO type_name VALUES (?, ?, ?, ?)", names)
        db.executemany(_OWN, [(*created, boot_id, now, entry) for created in _to_be_created(plan)])

    def end(
        self, db: sqlite3.Connection, entry: int, plan: Plan, state: JournalState, *, boot_id: str, now: str
    ) -> None:
        if state == JournalState.DONE:
            db.execute(_REPLACED, (entry,))
            no_vfs = (change for change in plan.changes_of(*VF_COUNTS) if change.after == "0")
            gone = [(change.subject,) for change in (*filter(removes, plan.changes), *no_vfs)]
            db.executemany("DELETE FROM vgpu WHERE id = ?", gone)
        else:
            db.execute("DELETE FROM vgpu WHERE journal = ?", (entry,))


def _refuse_foreign(db: sqlite3.Connection, plan: Plan, boot_id: str) -> None:
    going = [change.subject for change in plan.changes if removes(change)]
    if not going or not isinstance(plan.intent, RemoveVgpuIntent) or plan.intent.foreign:
        return
    created = {name for name, *_ in db.execute(CREATED, (boot_id,))}
    if others := [name for name in going if name not in created]:
        raise Foreign(
            f"vfioctl did not create {', '.join(others)}", hint="make a new plan; --foreign changes them anyway"
        )


def _to_be_created(plan: Plan) -> Iterator[tuple[str, str, str, bool]]:
    """Id, card, place, and whether it is persistent, of each vGPU and of VFs that the plan creates or takes over."""
    persistent = {change.subject for change in plan.changes_of(DEFINITION) if change.after}
    cards = [card for request in plan.checks if request.kind == CHECK for card in request.subjects]
    (card, *_) = cards or [""]
    for change in plan.changes:
        if creates(change) or keeps(change) or (changes_vfs(change) and change.after != "0"):
            place = f"{change.subject}/{change.after}" if change.kind == VGPU_TYPE else change.after
            yield change.subject, card, place, change.subject in persistent or keeps(change)
