"""The expansion ROM of a device, enabled while it is read. Enabling it is a write, so it is journaled as a change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from vfioctl.core.change import Change, Step
from vfioctl.core.resource import FileResource, Found
from vfioctl.errors import KernelRefused
from vfioctl.kernel.protocol import Reader

ROM, ON, OFF = "rom", "on", "off"
_OFF_AGAIN = "0\n"
"""Text that disables the ROM; older versions of pci_write_rom need two bytes."""


class RomSwitch(FileResource):
    """The enable bit of the ROM's address decoder, off before and after."""

    kind: ClassVar[str] = ROM
    path: ClassVar[str] = "/sys/bus/pci/devices/{}/rom"
    value: ClassVar[str] = f"{ON}|{OFF}"
    may_block: ClassVar[bool] = False

    def read(self, reader: Reader, change: Change) -> str | None:
        """Return None: no file shows whether the ROM is enabled."""
        return None

    def steps(self, change: Change) -> Iterator[Step]:
        if change.during is not None:
            step = self.write(change, "1", why="the ROM is switched on, read, and switched off")
            yield step.model_copy(update={"action": "read rom"})
        elif change.before != change.after:
            yield self.write(change, _OFF_AGAIN, why="off again")

    def shows_done(self, change: Change, found: str | None) -> bool:
        return False

    def is_done_anyway(self, reader: Reader, change: Change, error: KernelRefused) -> bool:
        """Return whether the ROM file does not exist, so that no ROM is enabled. A refused read is still reported."""
        return error.text == _OFF_AGAIN and error.symbol == "ENOENT"

    def restore(self, change: Change, found: Found) -> Change | None:
        """Return the change that disables the ROM, whether it is enabled or not."""
        return change.to(OFF, found=ON)

    def finish(self, change: Change, found: Found) -> Change | None:
        return self.restore(change, found)
