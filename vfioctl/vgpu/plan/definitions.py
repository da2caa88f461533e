"""The change of a definition, from which a vGPU or VFs are created at boot. Pure."""

from __future__ import annotations

from vfioctl.core.change import Change
from vfioctl.errors import BadSpec
from vfioctl.vgpu.model.kinds import DEFINITION, is_uuid
from vfioctl.vgpu.resources.definition import DefinitionFile


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
