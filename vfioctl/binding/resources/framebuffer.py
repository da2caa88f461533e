"""A framebuffer set up by the firmware, a platform device: the driver that it is bound to, or none."""

from __future__ import annotations

from typing import ClassVar

from vfioctl.binding.resources.released import ReleasedFile
from vfioctl.core.change import Change, Phase, Step
from vfioctl.kernel.protocol import FIRMWARE_FRAMEBUFFERS, Reader

PLATFORM_DEVICES = "/sys/bus/platform/devices"
PLATFORM_DRIVERS = "/sys/bus/platform/drivers"


class Framebuffer(ReleasedFile):
    kind: ClassVar[str] = "framebuffer"
    path: ClassVar[str] = r"[a-z][a-z0-9-]{0,31}\.[0-9]{1,3}"
    value: ClassVar[str] = "|".join(FIRMWARE_FRAMEBUFFERS)
    released: ClassVar[str] = ""
    why: ClassVar[str] = "the firmware's framebuffer releases it"
    again: ClassVar[str] = "the firmware's framebuffer as before"
    may_block: ClassVar[bool] = False

    def read(self, reader: Reader, change: Change) -> str | None:
        """Return the driver; None if vfio-pci removed the device (aperture_remove_conflicting_pci_devices)."""
        if reader.has(PLATFORM_DEVICES) and not reader.has(f"{PLATFORM_DEVICES}/{change.name}"):
            return None
        driver = change.before or change.after
        drivers = (driver, *FIRMWARE_FRAMEBUFFERS)
        bound = any(reader.has(f"{PLATFORM_DRIVERS}/{driver}/{change.name}") for driver in drivers)
        return driver if bound else ""

    def write(self, change: Change, value: str, *, phase: Phase | None = None, why: str = "") -> Step:
        return Step(
            phase=phase or self.phase,
            target=f"{PLATFORM_DRIVERS}/{value or change.before}/{'bind' if value else 'unbind'}",
            value=change.name,
            why=why or self.why,
            subject=change.subject,
            may_fail=change.may_fail,
        )
