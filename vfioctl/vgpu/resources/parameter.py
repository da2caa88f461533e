"""A sysfs file of one vGPU, written after it is created and removed with it; and the profiles of xe cards."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar

from vfioctl.core.change import Change, Phase, Step
from vfioctl.core.resource import Description, FileResource, Found
from vfioctl.kernel.host_paths import MDEV_DEVICES
from vfioctl.kernel.protocol import PCI_ADDRESS, PCI_DEVICES, Reader
from vfioctl.vgpu.model.kinds import PARAMETER, PROFILE, is_uuid, own_folder, vgpu_key
from vfioctl.vgpu.resources.vfs import AdjustedFile

_NOT_ITS_OWN = "driver|firmware_node|iommu|iommu_group|mdev_type|of_node|power|subsystem|vfio-dev"
"""Directories of a mediated device that belong to the kernel, or are links: they contain no parameters."""
_OF_MDEV = rf"{MDEV_DEVICES}/{{}}/(?!({_NOT_ITS_OWN})/)[a-z0-9_-]+/(?!current_vgpu_type$)[a-z0-9_]+"
_OF_VF = rf"{PCI_DEVICES}/{{}}/nvidia/(?!current_vgpu_type$)[a-z0-9_]+"
_LONGEST = 255


class Parameter(FileResource):
    """One parameter of one vGPU. An empty value means that the vGPU does not exist; it is never written."""

    kind: ClassVar[str] = PARAMETER
    value: ClassVar[str] = "[ -~]{0,1000}"
    phase: ClassVar[Phase] = Phase.SET

    def validate(self, change: Change) -> None:
        if not is_uuid(change.subject) and not PCI_ADDRESS.fullmatch(change.subject):
            raise ValueError(f"not a vGPU: {change.subject[:40]!r}")
        form = _OF_VF if PCI_ADDRESS.fullmatch(change.subject) else _OF_MDEV
        named = re.fullmatch(form.replace("{}", re.escape(change.subject)), change.name, re.ASCII)
        if named is None or len(change.name) >= _LONGEST:
            raise ValueError(f"not the name of a parameter of {change.subject}: {change.name[:80]!r}")
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
        now = found.of(change)
        if now is None:
            return change if change.after else None
        return change.model_copy(update={"before": now})

    def describe(self, change: Change) -> Description:
        own = change.name.removeprefix(f"{own_folder(change.subject)}/")
        return Description(f"{change.subject} {own}", change.before or "none", change.after or "none")


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
