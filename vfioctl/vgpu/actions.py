"""The action of vGPU steps that runs NVIDIA's sriov-manage."""

from __future__ import annotations

from typing import ClassVar

from vfioctl.core.action import Context
from vfioctl.core.change import Step
from vfioctl.vgpu.model.kinds import NVIDIA_VFS


class ManageVfs:
    """Enables or disables all VFs of a GPU on the nvidia driver with NVIDIA's sriov-manage."""

    name: ClassVar[str] = NVIDIA_VFS
    merges: ClassVar[bool] = False

    def run(self, context: Context, step: Step) -> None:
        """Its exit status is ignored: the VFs are counted afterwards. Its output is shown when verification fails."""
        context.said = context.kernel.manage_vfs(step.target, on=step.value == "1")

    def describe(self, step: Step) -> str:
        return f"sriov-manage {'-e' if step.value == '1' else '-d'} {step.target}"

    def progress(self, step: Step) -> str:
        return self.describe(step)
