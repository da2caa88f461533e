"""The resource `service`: a systemd unit that holds a device, active or inactive."""

from __future__ import annotations

from typing import ClassVar

from vfioctl.binding.resources.released import ReleasedFile
from vfioctl.core.change import Change, Phase, Step
from vfioctl.kernel.protocol import Reader

SERVICE, ACTIVE, INACTIVE = "service", "active", "inactive"


class Service(ReleasedFile):
    kind: ClassVar[str] = SERVICE
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
