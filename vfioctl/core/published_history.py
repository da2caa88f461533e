"""The history as ordinary users may know it, in the journal's own values. May not do input or output."""

from __future__ import annotations

from vfioctl.core.caller import is_making
from vfioctl.core.change import Caller, Intent, JournalEntry, JournalState, Plan
from vfioctl.core.published import MOST_CHANGES, Published, PublishedChange
from vfioctl.errors import StoreDamaged

_NOTE = "only root may read what it changed, by which steps, its command and what went wrong"


class PublishedIntent(Intent):
    """The verb of a change, and its devices."""

    subjects: tuple[str, ...]

    def title(self) -> str:
        """Return them in one line."""
        return f"{self.verb} {', '.join(self.subjects)}"

    def permits(self, plan: Plan) -> bool:
        """Permit nothing: nobody can apply it."""
        return False


class PublishedPlan(Plan):
    """A plan without changes and steps, which only says what it was about."""

    @property
    def subjects(self) -> tuple[str, ...]:
        """The devices that the change concerned."""
        assert isinstance(self.intent, PublishedIntent)
        return self.intent.subjects


def published_entries(document: Published, *, most: int = -1, since: str = "") -> tuple[JournalEntry, ...]:
    """Return at most `most` published changes that began at `since` or later, the newest first. Raises StoreDamaged."""
    if document.history is None:
        raise StoreDamaged(
            "an earlier release has published what ordinary users may know of the ledger, without its history",
            hint="run it as root; the next change as root publishes it",
        )
    makers = {change.journal: change for change in document.unfinished}
    under_way = {number for number, c in makers.items() if is_making(c.pid, c.began, c.lock)}
    rows = [change for change in document.history if change.began >= since][: most if most >= 0 else None]
    try:
        return tuple(_entry(change, under_way=change.id in under_way) for change in rows)
    except ValueError as error:
        raise StoreDamaged(
            f"what root publishes of the ledger cannot be used: {error}", hint="run it as root"
        ) from None


def published_unfinished(document: Published) -> tuple[JournalEntry, ...]:
    """Return the published changes that are under way or were interrupted, the newest first. Raises StoreDamaged."""
    unfinished = {change.journal for change in document.unfinished}
    return tuple(entry for entry in published_entries(document) if entry.id in unfinished)


def _entry(change: PublishedChange, *, under_way: bool) -> JournalEntry:
    intent = PublishedIntent(verb=change.verb, subjects=change.subjects)
    return JournalEntry.model_construct(  # the id is that of the whole plan, which validation would not find
        id=change.id,
        plan=PublishedPlan.model_construct(id=change.plan, intent=intent, notes=(_NOTE,)),
        state=JournalState(change.state),
        boot_id=change.boot_id,
        began=change.began,
        ended=change.ended,
        caller=Caller(user=change.user, sudo_user=change.sudo_user, pid=change.pid),
        made_for=change.made_for,
        under_way=under_way,
    )


OLDER = f"only root may read changes other than the last {MOST_CHANGES} and the unfinished ones"
