"""The base class of resources that are one file, or one value, of a PCI function."""

from __future__ import annotations

from vfioctl.core.change import Change
from vfioctl.core.resource import FileResource
from vfioctl.kernel.protocol import PCI_ADDRESS


class FunctionFile(FileResource):
    """A file of a PCI function. The function's address is the subject of its changes."""

    def validate(self, change: Change) -> None:
        if not PCI_ADDRESS.fullmatch(change.subject):
            raise ValueError(f"not the address of a function: {change.subject[:40]!r}")
        super().validate(change)
