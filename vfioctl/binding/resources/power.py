"""`power/control`: `on` keeps a device on vfio-pci awake. vfio-pci changes it when it binds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from vfioctl.binding.model.binding import Binding
from vfioctl.binding.resources.driver import BINDING
from vfioctl.binding.resources.released import ReleasedFile
from vfioctl.core.change import Change, Phase, Step
from vfioctl.core.resource import Found


class Power(ReleasedFile):
    """Runtime power management of a device. Written last and always: drivers and udev rules set it at binding."""

    kind: ClassVar[str] = "power"
    path: ClassVar[str] = "/sys/bus/pci/devices/{}/power/control"
    value: ClassVar[str] = "on|auto"
    released: ClassVar[str] = "on"
    after_each_bind: ClassVar[bool] = True
    why: ClassVar[str] = "vfio-pci would let it sleep while it is idle"

    def is_to_release(self, value: str | None) -> bool:
        """Return true also for `on`: vfio-pci changes it when it binds."""
        return value is not None

    def steps(self, change: Change) -> Iterator[Step]:
        yield self.write(change, change.after, phase=Phase.SETTLE, why=self.again if change.may_fail else self.why)

    def restore(self, change: Change, found: Found) -> Change | None:
        now = found.of(change)
        if now is None:
            return None
        may_fail = not (change.before == self.released and _goes_back_to_vfio(change, found))
        return change.to(change.before, found=now, may_fail=may_fail)


def _goes_back_to_vfio(change: Change, found: Found) -> bool:
    """Return whether rollback returns the device to VFIO, where it must stay awake."""
    binding = found.changes.get((BINDING, change.subject))
    return binding is not None and Binding.parse(binding.before).on_vfio
