"""What resources of a PCI function share: the class for one file of it, and the step that checks for holders."""

from __future__ import annotations

from vfioctl.core.change import Change, Phase, Step
from vfioctl.core.resource import FileResource
from vfioctl.kernel.protocol import PCI_ADDRESS


class FunctionFile(FileResource):
    """A file of a PCI function. The function's address is the subject of its changes."""

    def validate(self, change: Change) -> None:
        if not PCI_ADDRESS.fullmatch(change.subject):
            raise ValueError(f"not the address of a function: {change.subject[:40]!r}")
        super().validate(change)


def check_not_held(change: Change, why: str, *, action: str = "unheld") -> Step:
    """The step that fails when the subject, or with the action `unheld VFs` one of its VFs, is held."""
    return Step(phase=Phase.CHECK, action=action, target=change.subject, why=why)
