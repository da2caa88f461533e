"""The resource `reset_method`: the reset methods that the kernel tries. Changed for one reset only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from vfioctl.core.change import Change, Phase, Step
from vfioctl.core.resource import FileResource


class ResetMethod(FileResource):
    kind: ClassVar[str] = "reset method"
    path: ClassVar[str] = "/sys/bus/pci/devices/{}/reset_method"

    def steps(self, change: Change) -> Iterator[Step]:
        if change.during is not None:
            step = self.write(change, change.during, phase=Phase.RELEASE, why="the kernel tries this method alone")
            yield step.model_copy(update={"may_fail": False})
        if change.during is not None or change.before != change.after:
            yield self.write(change, change.after, phase=Phase.SETTLE, why="the methods as they were before")
