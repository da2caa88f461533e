"""The files that bind a device at each boot: its definition and its udev rule. May not know what is bound now."""

from __future__ import annotations

import re
from typing import ClassVar

from vfioctl.binding.model.definition import DEFINITION, RULE, RULE_FORM, DeviceDefinition, definition_file, rule_file
from vfioctl.core.change import Change
from vfioctl.core.resource import Description, WholeFile
from vfioctl.kernel.protocol import PCI_ADDRESS


class DeviceFile(WholeFile):
    """The definition of a device: the desired state. vfioctl reads it after a boot."""

    kind: ClassVar[str] = DEFINITION
    value: ClassVar[str] = r"[ -~\t\n]{0,65536}"  # also text that others wrote
    survives_reboot: ClassVar[bool] = True
    why_written: ClassVar[str] = "so that it is bound to VFIO at each boot"
    why_removed: ClassVar[str] = "so that it keeps its own driver at the next boot"

    def validate(self, change: Change) -> None:
        """Accept any text before, so that it can be restored, and only a definition of this device after."""
        if not PCI_ADDRESS.fullmatch(change.subject) or change.name != definition_file(change.subject):
            raise ValueError(f"not the definition of {change.subject[:40]}: {change.name[:80]!r}")
        if not all(re.fullmatch(self.value, text) for text in (change.before, change.after)) or change.during:
            raise ValueError("not the text of a definition")
        if change.after and change.after != _canonical(change.after, change.subject):
            raise ValueError(f"not a definition of {change.subject}, as vfioctl writes it")

    def describe(self, change: Change) -> Description:
        before, after = ("bound to VFIO" if text else "its own driver" for text in (change.before, change.after))
        return Description(f"{change.subject} at boot", before, after)


class RuleFile(WholeFile):
    """The udev rule of a device: it acts early in a boot, before the device's own driver is loaded."""

    kind: ClassVar[str] = RULE
    value: ClassVar[str] = r"[ -~\t\n]{0,65536}"
    survives_reboot: ClassVar[bool] = True
    why_written: ClassVar[str] = "so that udev binds it before its own driver is loaded"
    why_removed: ClassVar[str] = "so that udev does not bind it to VFIO"

    def validate(self, change: Change) -> None:
        """Accept any text before, and after only a rule in vfioctl's own form: others could run commands."""
        if not PCI_ADDRESS.fullmatch(change.subject) or change.name != rule_file(change.subject):
            raise ValueError(f"not the udev rule of {change.subject[:40]}: {change.name[:80]!r}")
        if not re.fullmatch(self.value, change.before) or change.during:
            raise ValueError("not the text of a udev rule")
        if change.after and not RULE_FORM.fullmatch(change.after):
            raise ValueError("not a udev rule of vfioctl")

    def describe(self, change: Change) -> Description:
        before, after = ("written" if text else "none" for text in (change.before, change.after))
        return Description(f"udev rule of {change.subject}", before, after)


def _canonical(text: str, address: str) -> str:
    """Return the text that vfioctl writes for this definition of a device; empty if it is none."""
    try:
        definition = DeviceDefinition.parse(text)
        return definition.text if definition.address == address else ""
    except ValueError:  # also of a wrong value
        return ""
