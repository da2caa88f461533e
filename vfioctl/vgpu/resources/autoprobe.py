"""Controls whether the kernel binds drivers to new VFs: off while VFs are created, and on again afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from vfioctl.core.change import Change, Phase, Step
from vfioctl.core.resource import Found
from vfioctl.vgpu.model.kinds import AUTOPROBE, VF_COUNT, count_file
from vfioctl.vgpu.resources.function_file import FunctionFile
from vfioctl.vgpu.resources.vf_count import VfCount


class Autoprobe(FunctionFile):
    """`sriov_drivers_autoprobe`. `during` is set only if the change creates VFs."""

    kind: ClassVar[str] = AUTOPROBE
    path: ClassVar[str] = "/sys/bus/pci/devices/{}/sriov_drivers_autoprobe"
    value: ClassVar[str] = "[01]"
    may_block: ClassVar[bool] = False

    def steps(self, change: Change) -> Iterator[Step]:
        if change.during is not None and change.before != change.during:
            why = "so that the kernel binds no driver to the VFs"
            yield self.write(change, change.during, phase=Phase.PREPARE, why=why)
        if change.during is not None or change.before != change.after:
            yield self.write(change, change.after, phase=Phase.RESUME, why="as it was before")

    def restore(self, change: Change, found: Found) -> Change | None:
        """Also switches it off while a rollback creates VFs, because they had no drivers before."""
        now = found.of(change)
        if now is None or now not in (change.after, change.during, "0"):
            return None
        count = _count(change, found)
        return _while_creating_vfs(change.to(change.before, found=now), count and VfCount().restore(count, found))

    def finish(self, change: Change, found: Found) -> Change | None:
        finished, count = super().finish(change, found), _count(change, found)
        return finished and _while_creating_vfs(finished, count and VfCount().finish(count, found))


def _count(change: Change, found: Found) -> Change | None:
    return found.changes.get((VF_COUNT, count_file(change.subject)))


def _while_creating_vfs(change: Change, count: Change | None) -> Change:
    creates = count is not None and count.after not in (count.before, "0")
    return change.model_copy(update={"during": "0" if creates else None})
