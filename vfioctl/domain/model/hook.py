"""The requests to install and to remove libvirt's hook. May not do input or output."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from vfioctl.core.change import Intent, Plan
from vfioctl.domain.model.hook_script import HOOK, SCRIPT


class _Intent(Intent):
    def title(self) -> str:
        return self.verb

    def permits(self, plan: Plan) -> bool:
        """Return whether the plan changes only the hook's script."""
        return all((change.kind, change.name) == (HOOK, SCRIPT) for change in plan.changes)


class InstallHookIntent(_Intent):
    """Let libvirt call vfioctl."""

    done: ClassVar[str] = "installed"

    verb: str = "hook install"
    command: str = Field(description="the path of vfioctl")
    ledger: str = Field(default="", description="the ledger's path, if it is not the usual one")

    def undone_by(self, plan: Plan) -> tuple[str, ...]:
        del plan
        return ("vfioctl hook remove",)


class RemoveHookIntent(_Intent):
    """Let libvirt call vfioctl no more."""

    done: ClassVar[str] = "removed"

    verb: str = "hook remove"

    def undone_by(self, plan: Plan) -> tuple[str, ...]:
        del plan
        return ("vfioctl hook install",)
