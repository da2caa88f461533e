"""The persistence mode of an NVIDIA GPU, by NVML: 1, 0, or `unknown`, which counts as on."""

from __future__ import annotations

from typing import ClassVar

from vfioctl.binding.model.binding import Binding
from vfioctl.binding.resources.released import ReleasedFile
from vfioctl.core.change import Change, Phase, Step
from vfioctl.core.resource import Description, Found
from vfioctl.kernel.protocol import PCI_ADDRESS, Reader

PERSISTENCE, UNKNOWN = "persistence", "unknown"
_MAY_FAIL = "may fail: NVML does not report the mode; if it is on, it would keep the GPU open"


class Persistence(ReleasedFile):
    """The mode of a GPU. NVML sees only GPUs on the nvidia driver: it is set before unbinding or after rebinding."""

    kind: ClassVar[str] = PERSISTENCE
    path: ClassVar[str] = "{}"
    value: ClassVar[str] = f"[01]|{UNKNOWN}"
    released: ClassVar[str] = "0"
    why: ClassVar[str] = "persistence mode would keep the GPU open"
    again: ClassVar[str] = "persistence mode as it was before"
    may_block: ClassVar[bool] = False
    optional_if_unknown: ClassVar[bool] = True

    def is_to_release(self, value: str | None) -> bool:
        """Return true also for an unknown mode, which counts as on."""
        return value != self.released

    def recorded(self, value: str | None) -> str:
        return UNKNOWN if value is None else value

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

    def finish(self, change: Change, found: Found) -> Change | None:
        return None if change.after == self.released and _is_moved(change, found) else change

    def describe(self, change: Change) -> Description:
        return Description(f"{change.subject} persistence mode", change.before, change.after)


def _is_moved(change: Change, found: Found) -> bool:
    """Return whether the GPU is on another driver, or on none, now."""
    now = found.values.get(("binding", change.subject))
    return now is not None and Binding.parse(now).driver != "nvidia"
