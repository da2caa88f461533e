"""Records of each function's binding before vfioctl changed it, for `unbind`. May write only the table `previous`."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from vfioctl.binding.model.binding import KERNEL_CHOICE, Binding, same_driver
from vfioctl.core.change import Change, JournalState, Plan
from vfioctl.core.journal import plan_in
from vfioctl.core.registry import Registry
from vfioctl.core.store import Store
from vfioctl.inventory.model.scope import FUNCTION
from vfioctl.inventory.model.values import PciAddress

_SETTINGS = """
    SELECT journal.id, previous.address, journal.plan FROM journal JOIN previous ON previous.journal = journal.id
    WHERE previous.boot_id = ? ORDER BY journal.id
"""
_RECORDS = "SELECT address, identity, driver, driver_override FROM previous WHERE boot_id = ?"
# If someone unbound a device from VFIO by hand and it has no driver now, the old record still holds. So does one that
# was made for the same reservation: someone gave the device to another driver, and it is bound again.
_REMEMBER = """
    INSERT INTO previous (address, identity, boot_id, driver, driver_override, journal) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
    ON CONFLICT (address) DO UPDATE SET
        identity = excluded.identity, boot_id = excluded.boot_id, driver = excluded.driver,
        driver_override = excluded.driver_override, journal = excluded.journal
    WHERE identity != excluded.identity OR boot_id != excluded.boot_id OR (
        excluded.driver IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM journal WHERE id = previous.journal AND made_for = ?7 AND ?7 != '')
    )
"""


class PreviousBindings:
    """Writes the table `previous` in the journal's transactions."""

    def begin(self, db: sqlite3.Connection, entry: int, plan: Plan, *, boot_id: str, now: str, acting_for: str) -> None:
        """Record each device's binding, unless an older record holds its origin, as for one that is on VFIO already."""
        if plan.intent.verb != "bind":
            return
        identities = {fact.subject: fact.values["identity"] for fact in plan.facts_of(FUNCTION)}
        for change in plan.changes_of("binding"):
            before = Binding.parse(change.before)
            if not before.on_vfio:
                record = (identities[change.subject], boot_id, before.driver, before.driver_override, entry)
                db.execute(_REMEMBER, (change.subject, *record, acting_for))

    def end(
        self, db: sqlite3.Connection, entry: int, plan: Plan, state: JournalState, *, boot_id: str, now: str
    ) -> None:
        """Delete the records of a bind that was rolled back, and of devices that have their recorded driver again."""
        if plan.intent.verb == "unbind" and state == JournalState.DONE:
            elsewhere = _elsewhere(db, plan)
            returned = [(subject,) for subject in plan.subjects if subject not in elsewhere]
            db.executemany("DELETE FROM previous WHERE address = ?", returned)
        if state in (JournalState.BACK, JournalState.REBOOTED):
            db.execute("DELETE FROM previous WHERE journal = ?", (entry,))


def _elsewhere(db: sqlite3.Connection, plan: Plan) -> set[str]:
    """Return the devices that `--to` gave to another driver: a plain `unbind` still restores the recorded one."""
    recorded = dict(db.execute("SELECT address, driver FROM previous").fetchall())
    goals = {change.subject: Binding.parse(change.after).driver for change in plan.changes_of("binding")}
    return {
        address
        for address, driver in goals.items()
        if recorded.get(address) and driver != KERNEL_CHOICE and not same_driver(recorded[address], driver)
    }


def recorded_bindings(
    store: Store, identities: Mapping[PciAddress, str], *, boot_id: str
) -> Mapping[PciAddress, Binding]:
    """Return the devices' bindings recorded in this boot, but not if another device has the address now."""
    rows: list[tuple[str, str, str | None, str | None]]
    rows = store.read(lambda db: db.execute(_RECORDS, (boot_id,)).fetchall(), [])
    return {
        PciAddress(address): Binding(driver, override)
        for address, identity, driver, override in rows
        if identities.get(PciAddress(address)) == identity
    }


def recorded_settings(store: Store, registry: Registry, *, boot_id: str) -> tuple[Change, ...]:
    """Return the settings changed in this boot when the recorded devices were bound to VFIO."""

    def ask(db: sqlite3.Connection) -> tuple[Change, ...]:
        return tuple(
            change
            for number, address, text in db.execute(_SETTINGS, (boot_id,)).fetchall()
            for change in plan_in(registry, number, text).changes
            if change.subject == address and change.kind not in ("binding", "module")
            if not registry.resource(change).survives_reboot
        )

    return store.read(ask, ())
