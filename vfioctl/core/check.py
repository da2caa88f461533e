"""Protocols of what a subsystem registers: facts that a plan relies on, checks that run after its last step, records
written in the journal's transactions. May not hold more code than what most answer.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from vfioctl.core.action import Context
from vfioctl.core.change import Fact, JournalState, Plan
from vfioctl.kernel.protocol import Reader


class FactSource(Protocol):
    """Reads and compares facts of one kind."""

    kind: ClassVar[str]

    def read(self, kernel: Reader, facts: Sequence[Fact]) -> Mapping[str, Fact]:
        """Return the current facts by subject, but for devices that are gone. Raises Stuck if one does not answer."""

    def holds(self, fact: Fact, now: Fact | None) -> bool:
        """Return whether the current fact `now` still fits `fact`; `now` is None if the device is gone."""

    def relatives(self, kernel: Reader, fact: Fact) -> Iterable[str]:
        """Return related devices: while a change of one of them is unfinished, the fact's device may not be changed."""

    def describe(self, fact: Fact) -> Sequence[str]:
        """Return the fact's columns on the plan's page; empty if the fact is not shown."""


class Check(Protocol):
    """Verifies one kind of condition after the last step."""

    kind: ClassVar[str]

    def verify(self, context: Context, plan: Plan, subjects: Sequence[str]) -> Mapping[str, Any]:
        """Verify the condition; return entries for the outcome's report. Raises VerifyError, KernelRefused."""

    def dead(self, context: Context, subjects: Sequence[str]) -> Mapping[str, str]:
        """Return the dead devices, each with the evidence, to be marked. Raises Stuck if a read never returned."""
        return {}

    def describe(self, plan: Plan, subjects: Sequence[str]) -> Sequence[str]:
        """Return lines for the plan's page that say what is verified."""

    def conclude(self, subjects: Sequence[str], report: Mapping[str, Any]) -> Sequence[str]:
        """Return lines to show below the outcome of a finished change."""
        return ()


class Records(Protocol):
    """Rows of a subsystem's own tables that must stay consistent with the journal."""

    def begin(self, db: sqlite3.Connection, entry: int, plan: Plan, *, boot_id: str, now: str, acting_for: str) -> None:
        """Write what recovery must know if this process dies; called before the first write to the host.

        `acting_for`: the reservation that the change is made for (`vfioctl.core.reservations`), if any. May raise to
        refuse the change.
        """

    def end(
        self, db: sqlite3.Connection, entry: int, plan: Plan, state: JournalState, *, boot_id: str, now: str
    ) -> None:
        """Update the rows when the change ends; not called for a stuck change."""
