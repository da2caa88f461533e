"""A definition below /etc from which a vGPU or VFs are created at boot. It is replaced as a whole."""

from __future__ import annotations

import re
from typing import ClassVar

from vfioctl.core.change import Change
from vfioctl.core.resource import Description, WholeFile
from vfioctl.errors import BadSpec
from vfioctl.kernel.host_paths import DEFINITIONS, OWN_DEFINITIONS
from vfioctl.kernel.protocol import PCI_ADDRESS
from vfioctl.vgpu.model.kinds import DEFINITION, is_uuid

_OF_MDEV = rf"{re.escape(DEFINITIONS)}/(?!scripts\.d/)[A-Za-z0-9][A-Za-z0-9:._-]*/{{}}"
_OF_FUNCTION = rf"{re.escape(OWN_DEFINITIONS)}/{{}}\.json"
_LONGEST = 255


class DefinitionFile(WholeFile):
    """The text of one definition; empty when there is no such file."""

    kind: ClassVar[str] = DEFINITION
    value: ClassVar[str] = r"[ -~\t\n]{0,65536}"  # also text that others wrote
    survives_reboot: ClassVar[bool] = True
    why_written: ClassVar[str] = "so that it is created at boot"
    why_removed: ClassVar[str] = "so that it is not created at boot"

    def validate(self, change: Change) -> None:
        if not is_uuid(change.subject) and not PCI_ADDRESS.fullmatch(change.subject):
            raise ValueError(f"neither a vGPU nor a function: {change.subject[:40]!r}")
        form = _OF_FUNCTION if PCI_ADDRESS.fullmatch(change.subject) else _OF_MDEV
        how = re.ASCII | re.IGNORECASE  # mdevctl keeps the case that the user typed
        named = re.fullmatch(form.replace("{}", re.escape(change.subject)), change.name, how)
        if named is None or len(change.name) >= _LONGEST:
            raise ValueError(f"not the name of a definition of {change.subject}: {change.name[:80]!r}")
        if not all(re.fullmatch(self.value, text) for text in (change.before, change.after, change.during or "")):
            raise ValueError("not the text of a definition")

    def describe(self, change: Change) -> Description:
        before, after = ("written" if text else "none" for text in (change.before, change.after))
        return Description(f"definition of {change.subject}", before, after)


def definition_change(file: str, subject: str, before: str, after: str) -> Change:
    """The change of a definition's text. Raises BadSpec when a text has characters other than printable ASCII."""
    try:
        change = Change(kind=DEFINITION, name=file, subject=subject, before=before, after=after)
        DefinitionFile().validate(change)
    except ValueError:
        raise BadSpec(
            f"{file} is not plain text: it could not be put back",
            hint=f"mdevctl undefine --uuid {subject}" if is_uuid(subject) else "repair it, or remove it",
        ) from None
    return change
