"""What a subsystem has reserved for somebody: others may not change it. May not do input or output."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from vfioctl.errors import ClaimConflict

if TYPE_CHECKING:
    from vfioctl.core.change import Plan


class Reservation(NamedTuple):
    """One device that is reserved as a whole, or of which a part is."""

    subject: str
    by: str
    """What reserves it, as `claim 1a2b3c4d`."""
    owner: str
    whole: bool
    """False if only a part of it is reserved, such as a VF: others may use other parts, but not change the whole."""
    release: str
    """The command that ends the reservation."""


NOTHING_RESERVED: tuple[Reservation, ...] = ()


def refuse_reserved(plan: Plan, reservations: Iterable[Reservation], *, acting_for: str = "") -> None:
    """Raise ClaimConflict if the plan changes what is reserved, or relies on it. `acting_for`: whose plan it is."""
    concerned = {fact.subject for fact in plan.facts}
    for each in reservations:
        if each.by != acting_for and (each.subject in plan.subjects or (each.whole and each.subject in concerned)):
            part = "" if each.whole else "a part of "
            raise ClaimConflict(
                f"{part}{each.subject} belongs to {each.by} of {each.owner}",
                hint="release it first, or choose another device",
                next_command=each.release,
                facts={"reserved": [each._asdict()]},
            )
