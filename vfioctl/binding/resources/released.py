"""Settings that are changed while a device is on VFIO and restored afterwards: their class, and the plain files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from vfioctl.core.change import Change, Phase, Step
from vfioctl.core.resource import FileResource, Found


class ReleasedFile(FileResource):
    """A setting with one value while the device is on VFIO, and its old value afterwards.

    Restoring it may fail (`may_fail`): a setting that cannot be restored must not undo the device's return.
    """

    released: ClassVar[str]
    """The value for a device on VFIO."""
    why: ClassVar[str] = "it holds the device"
    again: ClassVar[str] = "as it was before"
    after_each_bind: ClassVar[bool] = False
    """Whether a device that comes from another VFIO driver needs it as well."""

    optional_if_unknown: ClassVar[bool] = False
    """Whether the release may fail if the old value is unknown: whether anyone holds the device is checked after it."""

    def is_to_release(self, value: str | None) -> bool:
        """Return whether a device that goes to VFIO needs a change. None: the value could not be read."""
        return value not in (None, self.released)

    def recorded(self, value: str | None) -> str:
        """Return the value to put back afterwards."""
        return value or ""

    def steps(self, change: Change) -> Iterator[Step]:
        if change.before == change.after:
            return
        if change.after == self.released:
            yield self.write(change, change.after, phase=Phase.RELEASE)
        else:
            yield self.write(change, change.after, phase=Phase.SETTLE, why=self.again)

    def restore(self, change: Change, found: Found) -> Change | None:
        back = super().restore(change, found)
        return back and back.model_copy(update={"may_fail": True})


class D3Cold(ReleasedFile):
    """Whether a device may enter D3cold (no power)."""

    kind: ClassVar[str] = "d3cold"
    path: ClassVar[str] = "/sys/bus/pci/devices/{}/d3cold_allowed"
    value: ClassVar[str] = "[01]"
    released: ClassVar[str] = "0"
    why: ClassVar[str] = "some devices never wake from D3cold"


class VtConsole(ReleasedFile):
    """The text console. Its file disappears with the last framebuffer."""

    kind: ClassVar[str] = "console"
    path: ClassVar[str] = "/sys/class/vtconsole/vtcon[0-9]{1,3}/bind"
    value: ClassVar[str] = "[01]"
    released: ClassVar[str] = "0"
    why: ClassVar[str] = "the text console leaves the framebuffers"
    again: ClassVar[str] = "the text console as it was before"
