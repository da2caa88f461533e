"""What a subsystem has reserved for somebody: others may not change it. May not do input or output."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING

from vfioctl.core.frozen import value_class
from vfioctl.errors import ClaimConflict

if TYPE_CHECKING:
    from vfioctl.core.change import Plan


@value_class
class Reservation:
    """One device that is reserved as a whole, or of which a part is."""

    subject: str
    """the device, by address or UUID"""
    by: str
    """what reserves it, as `claim 1a2b3c4d`"""
    owner: str
    whole: bool
    """False if only a part of it is reserved, such as a VF: others may use other parts, but not change the whole"""
    release: str
    """the command that ends the reservation"""
    shared: bool = False
    """Whether it is of a share: of the whole device for guests, but not for what serves shares"""

    @property
    def claim(self) -> str:
        """The id in `by`: `1a2b3c4d`."""
        return self.by.rpartition(" ")[2]

    @property
    def words(self) -> str:
        """It in words, for notes and messages."""
        return f"{self.part} belongs to {self.by} of {self.owner}"

    @property
    def part(self) -> str:
        """The device, or `a part of` it, or `a share of` it."""
        return f"{'a share of ' if self.shared else '' if self.whole else 'a part of '}{self.subject}"

    def conflict(self) -> ClaimConflict:
        """Return the error for somebody else who wants the device."""
        return ClaimConflict(
            self.words,
            hint="release it first, or choose another device",
            next_command=self.release,
            facts={"claim": self.claim, "owner": self.owner, "reserved": [asdict(self)]},
        )


def whole_devices(reservations: Iterable[Reservation]) -> dict[str, Reservation]:
    """Return the reservations of whole devices by address or UUID."""
    return {reservation.subject: reservation for reservation in reservations if reservation.whole}


def refuse_reserved(plan: Plan, reservations: Iterable[Reservation], *, acting_for: str = "") -> None:
    """Raise ClaimConflict if the plan changes what is reserved, or relies on it. `acting_for`: whose plan it is."""
    concerned = {fact.subject for fact in plan.facts}
    for reservation in reservations:
        if reservation.by == acting_for or not (
            reservation.subject in plan.subjects or (reservation.whole and reservation.subject in concerned)
        ):
            continue
        changes = [change for change in plan.changes if change.subject == reservation.subject]
        if not plan.intent.serves(reservation.claim, changes, shared=reservation.shared):
            raise reservation.conflict()
