"""The VFs of a GPU on the nvidia driver: NVIDIA's sriov-manage enables all of them, or none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from vfioctl.core.change import Change, Step
from vfioctl.core.resource import Description
from vfioctl.vgpu.model.kinds import NVIDIA_VFS
from vfioctl.vgpu.resources.unheld import unheld
from vfioctl.vgpu.resources.vf_count import CountedVfs


class NvidiaVfs(CountedVfs):
    """The number of VFs of a GPU, named by its address."""

    kind: ClassVar[str] = NVIDIA_VFS
    path: ClassVar[str] = "{}"

    def steps(self, change: Change) -> Iterator[Step]:
        if change.before != change.after:
            yield unheld(change, "sriov-manage takes the GPU from its driver for a moment")
            yield Step(
                phase=self.phase,
                action=NVIDIA_VFS,
                target=change.name,
                value="0" if change.after == "0" else "1",
                why="NVIDIA's sriov-manage: its driver takes no other way",
                subject=change.subject,
            )

    def describe(self, change: Change) -> Description:
        return Description(f"{change.subject} VFs", change.before, change.after)
