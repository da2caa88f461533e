"""The number of VFs of a PF. Changing the count sets it to 0 first (Documentation/PCI/pci-iov-howto.rst)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from vfioctl.core.change import Change, Phase, Step
from vfioctl.core.resource import Description, Found
from vfioctl.errors import KernelRefused
from vfioctl.kernel.protocol import PCI_DEVICES, Reader
from vfioctl.vgpu.model.kinds import NVIDIA_VFS, VF_COUNT
from vfioctl.vgpu.resources.function_file import FunctionFile, check_not_held


class CountedVfs(FunctionFile):
    """The VFs of a PF, counted by the links to them, because reading `sriov_numvfs` may block (drivers/pci/iov.c)."""

    value: ClassVar[str] = "[0-9]{1,5}"
    phase: ClassVar[Phase] = Phase.COUNT
    fixed_start: ClassVar[bool] = True
    may_block: ClassVar[bool] = False

    def read(self, reader: Reader, change: Change) -> str | None:
        try:
            return str(len(reader.directory(f"{PCI_DEVICES}/{change.subject}", (), ("virtfn",)).links))
        except KernelRefused:
            return None

    def matches(self, change: Change, found: str | None) -> bool:
        return found == change.after

    def restore(self, change: Change, found: Found) -> Change | None:
        """Restores also a number other than the one written: the driver may have created fewer VFs."""
        now = found.of(change)
        if now is not None and change.key in found.written:
            return change.to(change.before, found=now)
        return super().restore(change, found)


class VfCount(CountedVfs):
    """`sriov_numvfs`."""

    kind: ClassVar[str] = VF_COUNT
    path: ClassVar[str] = "/sys/bus/pci/devices/{}/sriov_numvfs"

    def steps(self, change: Change) -> Iterator[Step]:
        if change.before == change.after:
            return
        if change.before != "0":
            yield check_not_held(change, "VFs in use are not removed", action="unheld VFs")
            why = "remove all VFs" if change.after == "0" else "changing the count sets it to 0 first"
            yield self.write(change, "0", why=why)
        if change.after != "0":
            yield self.write(change, change.after, why="create the VFs")


class NvidiaVfs(CountedVfs):
    """The number of VFs of a GPU, named by its address."""

    kind: ClassVar[str] = NVIDIA_VFS
    path: ClassVar[str] = "{}"

    def steps(self, change: Change) -> Iterator[Step]:
        if change.before != change.after:
            yield check_not_held(change, "sriov-manage takes the GPU from its driver for a moment")
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
