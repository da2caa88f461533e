"""NVIDIA's vendor-specific VFIO: a VF is a vGPU while it has a type.

Writing a type id creates a vGPU, writing 0 removes it. Changing the type sets it to 0 first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from vfioctl.core.action import Context
from vfioctl.core.change import Change, Phase, Step
from vfioctl.errors import DeviceInUse, KernelRefused, VfioctlError
from vfioctl.vgpu.model.kinds import VGPU_TYPE, creates, removes
from vfioctl.vgpu.resources.function_file import FunctionFile, check_not_held
from vfioctl.vgpu.resources.refused import creation_refused

_USED = ("EBUSY", "EPERM")


class TypeOfVf(FunctionFile):
    """`current_vgpu_type` of a VF: the id of a type, or 0."""

    kind: ClassVar[str] = VGPU_TYPE
    path: ClassVar[str] = "/sys/bus/pci/devices/{}/nvidia/current_vgpu_type"
    value: ClassVar[str] = "[0-9]{1,9}"
    fixed_start: ClassVar[bool] = True
    created: ClassVar[bool] = True
    shared_place: ClassVar[bool] = True

    def steps(self, change: Change) -> Iterator[Step]:
        if removes(change):
            yield check_not_held(change, "a vGPU in use is not removed")
            yield self.write(change, "0", phase=Phase.REMOVE, why="remove the vGPU")
        elif creates(change):
            yield self.write(change, change.after, phase=Phase.CREATE, why="create the vGPU")

    def matches(self, change: Change, found: str | None) -> bool:
        return not creates(change) if found is None else found == change.after

    def explain(self, context: Context, change: Change, error: KernelRefused) -> VfioctlError | None:
        if error.path != change.name or error.text is None:
            return None
        if error.text == "0" and error.symbol in _USED:
            return DeviceInUse(f"the driver says that a guest has {change.subject}", hint="end that guest first")
        if creates(change) and error.text == change.after:
            return creation_refused(context, change, error, nvidia=True)
        return None
