"""Selects changes of the journal by device, ID and age. Values only, no input or output."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime

from vfioctl.core.change import JournalEntry, JournalState
from vfioctl.errors import BadSpec

_UNFINISHED = (JournalState.OPEN, JournalState.STUCK)
_SHORTEST = 4
"""Least length of the beginning of an id, so that a number that is wrong means no change at all."""


def stamp(moment: datetime) -> str:
    """Return a moment as the journal writes it, so that texts compare like times."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds")


def recorded_devices(entries: Sequence[JournalEntry], name: str) -> frozenset[str]:
    """Return the recorded devices that a full or short address or the beginning of a UUID means."""
    begun = name.lower()
    known = frozenset(device for entry in entries for device in entry.devices)
    whole = known & {begun, f"0000:{begun}"}
    uuids = () if len(begun) < _SHORTEST else (uuid for uuid in known if ":" not in uuid and uuid.startswith(begun))
    return whole.union(uuids)


def named(entries: Sequence[JournalEntry], name: str) -> JournalEntry:
    """Return the change with this number, or the only one whose plan's id begins so (4 characters). Raises BadSpec."""
    if numbered := [entry for entry in entries if str(entry.id) == name]:
        return numbered[0]
    matching = [entry for entry in entries if len(name) >= _SHORTEST and entry.plan.id.startswith(name.lower())]
    if len(matching) == 1:
        return matching[0]
    if matching:
        numbers = ", ".join(str(entry.id) for entry in matching[:10])
        raise BadSpec(f"{name} matches {len(matching)} changes", hint=f"name one by its number: {numbers}")
    raise BadSpec(f"there is no change {name[:80]!r} in the ledger", next_command="vfioctl history")


def prunable(
    entries: Sequence[JournalEntry], *, needed: Collection[int], keep: int, before: datetime | None
) -> tuple[JournalEntry, ...]:
    """Return the finished changes that may be deleted.

    `entries`: the newest first. `needed`: numbers of changes that records of the ledger refer to. `keep`: how many of
    the newest stay. `before`: only those that began earlier."""
    # the newest one stays, because SQLite would give its number to the next change
    return tuple(
        entry
        for entry in entries[max(keep, 1) :]
        if entry.state not in _UNFINISHED and entry.id not in needed and (before is None or entry.began < stamp(before))
    )
