"""Settings that are changed while a device is on VFIO and restored afterwards: their class, and one for each kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from vfioctl.binding.model.binding import Binding
from vfioctl.binding.resources.driver import BINDING
from vfioctl.core.change import Change, Phase, Step
from vfioctl.core.resource import Description, FileResource, Found
from vfioctl.kernel.host_paths import FIRMWARE_FRAMEBUFFERS
from vfioctl.kernel.protocol import PCI_ADDRESS, Reader

UNKNOWN = "unknown"
ACTIVE, INACTIVE = "active", "inactive"
PLATFORM_DEVICES = "/sys/bus/platform/devices"
PLATFORM_DRIVERS = "/sys/bus/platform/drivers"
_MAY_FAIL = "may fail: NVML does not report the mode; if it is on, it would keep the GPU open"


class ReleasedFile(FileResource):
    """A setting with one value while the device is on VFIO, and its old value afterwards.

    Restoring it may fail (`may_fail`): a setting that cannot be restored must not undo the device's return."""

    released: ClassVar[str]
    """The value for a device on VFIO."""
    why: ClassVar[str] = "it holds the device"
    again: ClassVar[str] = "as it was before"
    after_each_bind: ClassVar[bool] = False
    """Whether a device that comes from another VFIO driver needs it as well."""
    unreadable: ClassVar[str | None] = None
    """What a value that could not be read counts as. None: the setting is left alone then."""
    optional_if_unknown: ClassVar[bool] = False
    """Whether the release may fail if the old value is unknown: whether anyone holds the device is checked after it."""

    def is_to_release(self, value: str | None) -> bool:
        """Return whether a device that goes to VFIO needs a change. None: the value could not be read."""
        return (self.unreadable if value is None else value) not in (None, self.released)

    def recorded(self, value: str | None) -> str:
        """Return the value to put back afterwards."""
        return value or self.unreadable or ""

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
        binding = found.changes.get((BINDING, change.subject))
        stays_on_vfio = binding is not None and Binding.parse(binding.before).on_vfio  # where it must stay awake
        may_fail = not (change.before == self.released and stays_on_vfio)
        return change.to(change.before, found=now, may_fail=may_fail)


class Framebuffer(ReleasedFile):
    """A framebuffer set up by the firmware, a platform device: the driver that it is bound to, or none."""

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
        step = super().write(change, change.name, phase=phase, why=why)
        file = f"{PLATFORM_DRIVERS}/{value or change.before}/{'bind' if value else 'unbind'}"
        return step.model_copy(update={"target": file})


class UnbindLock(ReleasedFile):
    """NVIDIA's `unbindLock`: while it is held, no process can open the GPU. It ends with the binding."""

    kind: ClassVar[str] = "lock"
    path: ClassVar[str] = "/proc/driver/nvidia/gpus/{}/unbindLock"
    value: ClassVar[str] = "[01]"
    phase: ClassVar[Phase] = Phase.LOCK
    released: ClassVar[str] = "1"
    unreadable: ClassVar[str | None] = "0"

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


class Persistence(ReleasedFile):
    """The persistence mode of an NVIDIA GPU: 1, 0, or `unknown`. NVML sets it only while nvidia has the GPU."""

    kind: ClassVar[str] = "persistence"
    path: ClassVar[str] = "{}"
    value: ClassVar[str] = f"[01]|{UNKNOWN}"
    released: ClassVar[str] = "0"
    why: ClassVar[str] = "persistence mode would keep the GPU open"
    again: ClassVar[str] = "persistence mode as it was before"
    may_block: ClassVar[bool] = False
    unreadable: ClassVar[str | None] = UNKNOWN
    optional_if_unknown: ClassVar[bool] = True

    def validate(self, change: Change) -> None:
        super().validate(change)
        if not PCI_ADDRESS.fullmatch(change.name):
            raise ValueError(f"not a function: {change.name[:40]!r}")

    def read(self, reader: Reader, change: Change) -> str | None:
        """Return None: the step reads the mode back, and NVML does not answer after the GPU has left its driver."""
        return None

    def write(self, change: Change, value: str, *, phase: Phase | None = None, why: str = "") -> Step:
        step = super().write(change, value, phase=phase, why=why or (_MAY_FAIL if change.before == UNKNOWN else ""))
        return step.model_copy(update={"action": "persistence"})

    def matches(self, change: Change, found: str | None) -> bool:
        return True

    def shows_done(self, change: Change, found: str | None) -> bool:
        """Return whether it is switched off: before the function is unbound. No fact reports whether it is on again."""
        return change.after == self.released

    def restore(self, change: Change, found: Found) -> Change | None:
        if change.before == UNKNOWN or (change.before == self.released and _is_moved(change, found)):
            return None
        return change.to(change.before, found=change.after, may_fail=True)

    def lost(self, change: Change) -> str:
        return (
            f"the persistence mode of {change.subject} was unknown, and may be off" if change.before == UNKNOWN else ""
        )

    def finish(self, change: Change, found: Found) -> Change | None:
        return None if change.after == self.released and _is_moved(change, found) else change

    def describe(self, change: Change) -> Description:
        return Description(f"{change.subject} persistence mode", change.before, change.after)


def _is_moved(change: Change, found: Found) -> bool:
    now = found.values.get((BINDING, change.subject))
    return now is not None and Binding.parse(now).driver != "nvidia"


class Service(ReleasedFile):
    """A systemd unit that holds a device, active or inactive."""

    kind: ClassVar[str] = "service"
    path: ClassVar[str] = r"[A-Za-z0-9][A-Za-z0-9_.@\\:-]{0,200}\.service"
    value: ClassVar[str] = f"{ACTIVE}|{INACTIVE}"
    released: ClassVar[str] = INACTIVE
    why: ClassVar[str] = "it holds the GPU"
    may_block: ClassVar[bool] = False

    def is_to_release(self, value: str | None) -> bool:
        return value == ACTIVE

    def read(self, reader: Reader, change: Change) -> str | None:
        state = reader.unit_states([change.name]).get(change.name)
        return None if state is None else activity(state)

    def write(self, change: Change, value: str, *, phase: Phase | None = None, why: str = "") -> Step:
        step = super().write(change, value, phase=phase, why=why)
        return step.model_copy(update={"action": "service", "subject": ""})  # a hanging unit wedges no device


def activity(state: str) -> str:
    """Map systemd's ActiveState to active or inactive; a failed unit is not running."""
    return ACTIVE if state in ("active", "activating", "reloading") else INACTIVE
