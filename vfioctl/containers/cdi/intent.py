"""vfioctl's CDI file of one kind of devices as a resource, and the request for it. May not do input or output."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, field_validator

from vfioctl.claims.model.cdi import KIND, Node, cdi_file, checked_kind
from vfioctl.console.words import counted
from vfioctl.containers.cdi.files import devices_in
from vfioctl.core.change import Change, Intent, Plan
from vfioctl.core.resource import Description, WholeFile
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


class CdiFile(WholeFile):
    """The text of the file; empty when there is none. The subject is the kind, such as `vfioctl/vfio`."""

    kind: ClassVar[str] = CDI_FILE
    hint: ClassVar[str] = "another program writes the file too"
    why_written: ClassVar[str] = "so that container runtimes know the devices by name"
    why_removed: ClassVar[str] = "because a CDI file without devices is invalid"

    def validate(self, change: Change) -> None:
        """A plan file can name no other file, and have nothing but devices of VFIO in it."""
        try:
            file = cdi_file(checked_kind(change.subject))
        except BadSpec as error:
            raise ValueError(error.message) from None
        if change.name != file:
            raise ValueError(f"not the CDI file of {change.subject}: {change.name[:80]!r}")
        for text in (change.before, change.after, change.during or ""):
            devices_in(text, change.subject)

    def describe(self, change: Change) -> Description:
        before, after = (_counted(text, change.subject) for text in (change.before, change.after))
        return Description(f"CDI file of {change.subject}", before, after)


def _counted(text: str, kind: str) -> str:
    try:
        written = devices_in(text, kind)
    except ValueError:
        return "something else"
    return counted(len(written), "device") if written else "none"
