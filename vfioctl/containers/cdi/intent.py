"""The request for a CDI file. May not do input or output."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, field_validator

from vfioctl.claims.model.cdi import KIND, Node, cdi_file, checked_kind
from vfioctl.core.change import Intent, Plan
from vfioctl.errors import BadSpec

CDI_FILE = "CDI file"


class CdiIntent(Intent):
    """Write the CDI file of one kind, or remove it when no device is left."""

    done: ClassVar[str] = "written"

    verb: str = "cdi generate"
    kind: str = Field(default=KIND, description="vendor/class")
    node: Node = Field(default=Node.GROUP, description="which node of a device a container gets")
    claim: str | None = Field(default=None, description="only the devices of this claim are changed in the file")
    everything: bool = Field(default=False, description="all devices on VFIO, claimed or not")

    @field_validator("kind")
    @classmethod
    def _check_kind(cls, value: str) -> str:
        try:
            return checked_kind(value)
        except BadSpec as error:
            raise ValueError(error.message) from None

    def title(self) -> str:
        which = f" --claim {self.claim}" if self.claim else " --all" if self.everything else ""
        return f"{self.verb}{which} --kind {self.kind} --node {self.node}"

    def permits(self, plan: Plan) -> bool:
        """Return whether the plan changes only the file of this kind."""
        return all((change.kind, change.name) == (CDI_FILE, cdi_file(self.kind)) for change in plan.changes)

    def undone_by(self, plan: Plan) -> tuple[str, ...]:
        return tuple(
            f"writing {change.name} again" if change.before else f"rm {change.name}" for change in plan.changes
        )
