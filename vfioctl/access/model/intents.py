"""The request to set who may open device nodes. May not do input or output."""

from __future__ import annotations

from typing import ClassVar, Literal

from vfioctl.access.model.record import NOTE, PERMISSIONS
from vfioctl.core.change import Intent, Plan


class AccessIntent(Intent):
    """Let users and groups open the device nodes of the claims that name them, and nobody else those of others."""

    done: ClassVar[str] = "set"

    verb: Literal["access"] = "access"

    def title(self) -> str:
        return "set who may open the device nodes of claims"

    def permits(self, plan: Plan) -> bool:
        return all(change.kind in (PERMISSIONS, NOTE) for change in plan.changes)

    def undone_by(self, plan: Plan) -> tuple[str, ...]:
        return ("vfioctl claim release CLAIM",)
