"""What a plan says about processes that may hold a device unseen."""

from __future__ import annotations

import pytest

from vfioctl.inventory.model.holders import Holders
from vfioctl.inventory.model.preconditions import unread_notes


@pytest.mark.parametrize(
    ("unread", "hidden", "unknown", "notes"),
    [
        (0, "", "", ()),
        (1, "", "", ("1 process could not be read, and may hold the devices too",)),
        (2, "", "", ("2 processes could not be read, and may hold the devices too",)),
        (0, "hidepid=2", "", ("processes may be hidden: hidepid=2",)),
        (0, "", "no /proc", ("whether a process holds the devices is unknown: no /proc",)),
        (
            3,
            "hidepid=2",
            "",
            ("3 processes could not be read, and may hold the devices too", "processes may be hidden: hidepid=2"),
        ),
    ],
)
def test_each_doubt_is_one_note(unread: int, hidden: str, unknown: str, notes: tuple[str, ...]) -> None:
    assert unread_notes(Holders(devices=(), unread=unread, hidden=hidden, unknown=unknown)) == notes
