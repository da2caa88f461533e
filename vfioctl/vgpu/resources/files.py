"""The files of a vGPU or PF that a change writes: parameters, the profiles of xe cards, and definitions below /etc."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar

from vfioctl.core.change import Change, Phase, Step
from vfioctl.core.resource import Description, FileResource, Found, WholeFile
from vfioctl.errors import BadSpec
from vfioctl.kernel.host_paths import DEFINITIONS, MDEV_DEVICES, OWN_DEFINITIONS
from vfioctl.kernel.protocol import PCI_ADDRESS, PCI_DEVICES, Reader
from vfioctl.vgpu.model.kinds import DEFINITION, PARAMETER, PROFILE, is_uuid, vgpu_key
from vfioctl.vgpu.resources.vfs import AdjustedFile

_NOT_ITS_OWN = "driver|firmware_node|iommu|iommu_group|mdev_type|of_node|power|subsystem|vfio-dev"
"""Directories of a mediated device that belong to the kernel, or are links: they contain no parameters."""
_PARAMETER_OF_MDEV = rf"{MDEV_DEVICES}/{{}}/(?!({_NOT_ITS_OWN})/)[a-z0-9_-]+/(?!current_vgpu_type$)[a-z0-9_]+"
_PARAMETER_OF_VF = rf"{PCI_DEVICES}/{{}}/nvidia/(?!current_vgpu_type$)[a-z0-9_]+"
_DEFINITION_OF_MDEV = rf"{re.escape(DEFINITIONS)}/(?!scripts\.d/)[A-Za-z0-9][A-Za-z0-9:._-]*/{{}}"
_DEFINITION_OF_FUNCTION = rf"{re.escape(OWN_DEFINITIONS)}/{{}}\.json"
_LONGEST = 255


def _check_name(change: Change, of_function: str, of_mdev: str, how: re.RegexFlag = re.ASCII) -> None:
    form = of_function if PCI_ADDRESS.fullmatch(change.subject) else of_mdev
    named = re.fullmatch(form.replace("{}", re.escape(change.subject)), change.name, how)
    if named is None or len(change.name) >= _LONGEST:
        raise ValueError(f"not the name of a {change.kind} of {change.subject}: {change.name[:80]!r}")


class Parameter(FileResource):
    """One parameter of one vGPU, removed with it. A vGPU that does not exist has no value; none is ever written."""

    kind: ClassVar[str] = PARAMETER
    value: ClassVar[str] = "[ -~]{0,1000}"
    phase: ClassVar[Phase] = Phase.SET

    def validate(self, change: Change) -> None:
        if not is_uuid(change.subject) and not PCI_ADDRESS.fullmatch(change.subject):
            raise ValueError(f"not a vGPU: {change.subject[:40]!r}")
        _check_name(change, _PARAMETER_OF_VF, _PARAMETER_OF_MDEV)
        if not all(re.fullmatch(self.value, text) for text in (change.before, change.after, change.during or "")):
            raise ValueError("not the value of a parameter")

    def steps(self, change: Change) -> Iterator[Step]:
        if change.after and change.before != change.after:
            yield self.write(change, change.after)

    def matches(self, change: Change, found: str | None) -> bool:
        """Compares lists of `name=value` regardless of order and spaces, which the driver may change."""
        return not change.after or (found is not None and _items(found) == _items(change.after))

    def restore(self, change: Change, found: Found) -> Change | None:
        """Restores the parameter of a vGPU that was removed. The parameter of a created vGPU is removed with it."""
        vgpu = found.changes.get(vgpu_key(change.subject))
        if vgpu is None or change.after:
            return None
        is_gone = found.of(vgpu) == vgpu.after  # its file does not exist yet
        return change.to(change.before, found="") if is_gone or found.of(change) == "" else None

    def finish(self, change: Change, found: Found) -> Change | None:
        """Also sets a parameter that cannot be read: its file is there only with its vGPU."""
        return super().finish(change, found) or (change if change.after else None)


def _items(text: str) -> frozenset[str]:
    return frozenset(filter(None, (item.strip() for item in text.split(","))))


_CHOSEN = re.compile(r"\[(\w+)\]")


class ProfileValue(AdjustedFile):
    """One value of one profile, such as `sriov_admin/vf1/profile/exec_quantum_ms`."""

    kind: ClassVar[str] = PROFILE
    path: ClassVar[str] = r"/sys/bus/pci/devices/{}/sriov_admin/(pf|vf[1-9][0-9]{0,3})/profile/[a-z_]+"
    phase: ClassVar[Phase] = Phase.SET

    def read(self, reader: Reader, change: Change) -> str | None:
        text = super().read(reader, change)
        return None if text is None else chosen_in(text)


def chosen_in(text: str) -> str:
    """The value in a file's text; if it lists several words, the one in brackets: `low [normal] high`."""
    chosen = _CHOSEN.search(text)
    return chosen[1] if chosen else text.strip()


class DefinitionFile(WholeFile):
    """The text of one definition, from which a vGPU or VFs are created at boot; empty when there is no such file."""

    kind: ClassVar[str] = DEFINITION
    value: ClassVar[str] = r"[ -~\t\n]{0,65536}"  # also text that others wrote
    survives_reboot: ClassVar[bool] = True
    why_written: ClassVar[str] = "so that it is created at boot"
    why_removed: ClassVar[str] = "so that it is not created at boot"

    def validate(self, change: Change) -> None:
        if not is_uuid(change.subject) and not PCI_ADDRESS.fullmatch(change.subject):
            raise ValueError(f"neither a vGPU nor a function: {change.subject[:40]!r}")
        how = re.ASCII | re.IGNORECASE  # mdevctl keeps the case that the user typed
        _check_name(change, _DEFINITION_OF_FUNCTION, _DEFINITION_OF_MDEV, how)
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
