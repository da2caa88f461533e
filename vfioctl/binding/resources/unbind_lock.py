"""NVIDIA's `unbindLock`: while it is held, no process can open the GPU. It ends with the binding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from vfioctl.binding.resources.released import ReleasedFile
from vfioctl.core.change import Change, Phase, Step
from vfioctl.core.resource import Description, FileResource, Found


class UnbindLock(ReleasedFile):
    kind: ClassVar[str] = "lock"
    path: ClassVar[str] = "/proc/driver/nvidia/gpus/{}/unbindLock"
    value: ClassVar[str] = "[01]"
    phase: ClassVar[Phase] = Phase.LOCK
    released: ClassVar[str] = "1"

    def is_to_release(self, value: str | None) -> bool:
        """Return true also for a lock that cannot be read: it counts as open."""
        return value != self.released

    def recorded(self, value: str | None) -> str:
        """Return open: a held lock ends with the binding."""
        return "0"

    def steps(self, change: Change) -> Iterator[Step]:
        if change.before == change.after:
            return
        if change.after == "1":
            step = self.write(change, "1", why="granted only while nobody uses the GPU")
            yield step.model_copy(update={"action": "unbind lock"})
        else:
            yield self.write(change, change.after, why="open again")

    def restore(self, change: Change, found: Found) -> Change | None:
        """Open the lock again; this must not fail."""
        return FileResource.restore(self, change, found)

    def matches(self, change: Change, found: str | None) -> bool:
        """Accept a missing file, which is gone after the unbind; the step itself verifies the lock."""
        return True

    def describe(self, change: Change) -> Description:
        after = "on, then gone with the binding" if change.after == "1" else change.after
        return Description(f"{change.subject} unbindLock", change.before, after)
