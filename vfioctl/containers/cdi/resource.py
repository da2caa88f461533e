"""vfioctl's CDI file of one kind of devices, in /var/run/cdi. It is replaced as a whole."""

from __future__ import annotations

from typing import ClassVar

from vfioctl.claims.model.cdi import cdi_file, checked_kind
from vfioctl.containers.cdi.document import devices_in
from vfioctl.containers.cdi.intent import CDI_FILE
from vfioctl.core.change import Change
from vfioctl.core.resource import Description
from vfioctl.core.whole_file import WholeFile
from vfioctl.errors import BadSpec


class CdiFile(WholeFile):
    """The text of the file; empty when there is none. The subject is the kind, such as `vfioctl/vfio`."""

    kind: ClassVar[str] = CDI_FILE
    hint: ClassVar[str] = "another program writes the file too"
    why_written: ClassVar[str] = "so that container runtimes know the devices by name"
    why_removed: ClassVar[str] = "because a CDI file without devices is invalid"

    def validate(self, change: Change) -> None:
        """A plan file can name no other file, and have nothing but devices of VFIO in it."""
        try:
            file = cdi_file(checked_kind(change.subject))
        except BadSpec as error:
            raise ValueError(error.message) from None
        if change.name != file:
            raise ValueError(f"not the CDI file of {change.subject}: {change.name[:80]!r}")
        for text in (change.before, change.after, change.during or ""):
            devices_in(text, change.subject)

    def describe(self, change: Change) -> Description:
        before, after = (_counted(text, change.subject) for text in (change.before, change.after))
        return Description(f"CDI file of {change.subject}", before, after)


def _counted(text: str, kind: str) -> str:
    try:
        found = devices_in(text, kind)
    except ValueError:
        return "something else"
    devices = "device" if len(found) == 1 else "devices"
    return f"{len(found)} {devices}" if found else "none"
