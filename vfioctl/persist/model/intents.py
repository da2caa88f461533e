"""The intents of persistence. One frozen class per verb. May not do input or output."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from vfioctl.binding.model.definition import DEFINITION, RULE
from vfioctl.core.change import Intent, Plan
from vfioctl.vgpu.model.kinds import DEFINITION as VGPU_DEFINITION
from vfioctl.vgpu.model.kinds import keeps

FORGETTABLE = frozenset({DEFINITION, RULE, VGPU_DEFINITION})
DRIVERCTL_OVERRIDE = "driverctl override"
"""The kind of resource: a file of driverctl."""


class ForgetIntent(Intent):
    """Remove definitions, so that the next boot does not restore what they define. Nothing changes now."""

    done: ClassVar[str] = "removed from what a boot restores"

    verb: Literal["persist remove"] = "persist remove"
    names: tuple[str, ...] = Field(description="addresses of devices and PFs, UUIDs of vGPUs")

    def title(self) -> str:
        return " ".join((self.verb, *self.names))

    def permits(self, plan: Plan) -> bool:
        """Return whether the plan only removes definitions of what it names."""
        return all(c.kind in FORGETTABLE and not c.after and c.subject in self.names for c in plan.changes)

    def undone_by(self, plan: Plan) -> tuple[str, ...]:
        devices = [change.subject for change in plan.changes_of(DEFINITION)]
        return (f"vfioctl bind {' '.join(devices)} --persistent",) if devices else ()


class ImportIntent(Intent):
    """Take over devices that another program binds to VFIO at boot, and that are bound now, and vGPUs that exist."""

    done: ClassVar[str] = "taken over"

    verb: Literal["persist import"] = "persist import"
    names: tuple[str, ...] = Field(description="addresses of devices and VFs, UUIDs of mediated devices")

    def title(self) -> str:
        return " ".join((self.verb, *self.names))

    def permits(self, plan: Plan) -> bool:
        """Return whether the plan only writes definitions of these devices and vGPUs, and removes driverctl's files."""
        return all(
            change.subject in self.names
            and (
                change.after != "" if change.kind in FORGETTABLE else change.kind == DRIVERCTL_OVERRIDE or keeps(change)
            )
            for change in plan.changes
        )

    def undone_by(self, plan: Plan) -> tuple[str, ...]:
        """Nothing undoes that a definition of mdevctl's is vfioctl's."""
        own = [c.subject for c in plan.changes if c.kind in (DEFINITION, VGPU_DEFINITION) and not c.before]
        back = [f"driverctl --nosave set-override {c.subject} {c.before}" for c in plan.changes_of(DRIVERCTL_OVERRIDE)]
        return (*((f"vfioctl persist remove {' '.join(own)}",) if own else ()), *back)
