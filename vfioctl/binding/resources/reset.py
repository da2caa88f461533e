"""A reset: the file that resets a device, and the functions that it affects. It cannot be rolled back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar

from vfioctl.core.change import Change, Phase, Step
from vfioctl.core.resource import Description, FileResource, Found
from vfioctl.kernel.protocol import PCI_ADDRESS, Reader

RESET = "reset"


class Reset(FileResource):
    """The reset of a device. `before` is empty; `after` lists the functions that are reset."""

    kind: ClassVar[str] = RESET
    may_block: ClassVar[bool] = False

    def validate(self, change: Change) -> None:
        own = f"/sys/bus/pci/devices/{change.subject}/reset"
        above = rf"/sys/bus/pci/devices/{PCI_ADDRESS.pattern}/reset_subordinate"
        if not PCI_ADDRESS.fullmatch(change.subject):
            raise ValueError(f"not a function: {change.subject[:40]!r}")
        if change.name != own and not re.fullmatch(above, change.name, re.ASCII):
            raise ValueError(f"not a file that resets {change.subject[:40]}")
        named = change.after.split(" ") if change.after else []
        if change.before or change.during or not all(map(PCI_ADDRESS.fullmatch, named)):
            raise ValueError("not the value of a reset")

    def read(self, reader: Reader, change: Change) -> str | None:
        """Return None: the kernel does not show whether a device was reset."""
        return None

    def steps(self, change: Change) -> Iterator[Step]:
        yield Step(phase=Phase.CHECK, action="unheld", target=change.after, why="a device in use is not taken")
        yield self.write(change, "1", phase=Phase.RESET, why="the kernel resets it")

    def shows_done(self, change: Change, found: str | None) -> bool:
        return False

    def restore(self, change: Change, found: Found) -> Change | None:
        return None

    def finish(self, change: Change, found: Found) -> Change | None:
        return change

    def describe(self, change: Change) -> Description:
        return Description(change.subject, "", "")


class ResetMethod(FileResource):
    kind: ClassVar[str] = "reset method"
    path: ClassVar[str] = "/sys/bus/pci/devices/{}/reset_method"

    def steps(self, change: Change) -> Iterator[Step]:
        if change.during is not None:
            step = self.write(change, change.during, phase=Phase.RELEASE, why="the kernel tries this method alone")
            yield step.model_copy(update={"may_fail": False})
        if change.during is not None or change.before != change.after:
            yield self.write(change, change.after, phase=Phase.SETTLE, why="the methods as they were before")
