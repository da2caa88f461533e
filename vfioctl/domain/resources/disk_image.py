"""The resource `disk image`: a volume in qcow2. The value is its size and its base; empty if there is none."""

from __future__ import annotations

import re
from typing import ClassVar

from vfioctl.core.change import Change
from vfioctl.core.resource import Description, Found
from vfioctl.domain.model.storage import IMAGE
from vfioctl.domain.resources.volume import Volume, place_of
from vfioctl.kernel.libvirt.storage import WRITTEN
from vfioctl.units import format_size

CREATE = "create disk image"
"""The action."""
_VALUE = re.compile(r"[0-9]{1,15}( on (qcow2|raw) /[^\0-\x1f]{1,1024})?", re.ASCII)


class DiskImage(Volume):
    """The value is in words, such as `42949672960 on qcow2 /images/debian.qcow2`; size 0: that of the base."""

    kind: ClassVar[str] = IMAGE
    question: ClassVar[str] = "volume"
    create: ClassVar[str] = CREATE

    def validate(self, change: Change) -> None:
        """Only creating one, and taking that back, is a change: no plan changes or deletes what was there."""
        super().validate(change)
        if not change.name.endswith(".qcow2"):
            raise ValueError(f"not the name of a disk image: {change.name[:80]!r}")
        texts = filter(None, (change.before.removesuffix(WRITTEN), change.after))
        if change.after == "0" or not all(map(_VALUE.fullmatch, texts)):
            raise ValueError("not the value of a disk image")

    def _is(self, change: Change, found: str) -> bool:
        return is_image(found, change.after)

    def _is_own(self, change: Change, now: str, found: Found) -> bool:
        """An image in which a guest has written stays, whoever it was."""
        del found
        return self._is(change, now) and not now.endswith(WRITTEN)

    def describe(self, change: Change) -> Description:
        _, pool, volume = place_of(change.name)
        return Description(f"disk image {pool}/{volume}", words_of(change.before), words_of(change.after))


def is_image(found: str, wanted: str) -> bool:
    """Return whether a value that was read is what was wanted."""
    if not found or not wanted:
        return found == wanted
    parts, wanted_parts = found.removesuffix(WRITTEN).partition(" on "), wanted.partition(" on ")
    return parts[2] == wanted_parts[2] and wanted_parts[0] in ("0", parts[0])


def words_of(value: str) -> str:
    """Return a value as text for a page."""
    if not value:
        return "none"
    amount, _, base = value.removesuffix(WRITTEN).partition(" on ")
    large = "as large as its base" if amount == "0" else format_size(int(amount))
    return f"{large}, on {base.partition(' ')[2]}" if base else large
