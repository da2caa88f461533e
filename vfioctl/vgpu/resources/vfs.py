"""The VFs of a PF: their number, what creates those of NVIDIA GPUs, and whether the kernel binds drivers to them.
Changing the count sets it to 0 first (Documentation/PCI/pci-iov-howto.rst)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from vfioctl.core.action import Action, Context
from vfioctl.core.change import Change, Phase, Step
from vfioctl.core.resource import Description, FileResource, Found
from vfioctl.errors import KernelRefused
from vfioctl.kernel.protocol import PCI_ADDRESS, PCI_DEVICES, Reader
from vfioctl.vgpu.model.kinds import AUTOPROBE, NVIDIA_VFS, VF_COUNT, count_file


class FunctionFile(FileResource):
    """A file of a PCI function. The function's address is the subject of its changes."""

    def validate(self, change: Change) -> None:
        if not PCI_ADDRESS.fullmatch(change.subject):
            raise ValueError(f"not the address of a function: {change.subject[:40]!r}")
        super().validate(change)


class AdjustedFile(FunctionFile):
    """A file of which the driver may adjust what is written, such as create fewer VFs."""

    def restore(self, change: Change, found: Found) -> Change | None:
        """Restores also a value other than the one written."""
        now = found.of(change)
        if now is not None and change.key in found.written:
            return change.to(change.before, found=now)
        return super().restore(change, found)


def check_not_held(change: Change, why: str, *, action: str = "unheld") -> Step:
    """The step that fails when the subject, or with the action `unheld VFs` one of its VFs, is held."""
    return Step(phase=Phase.CHECK, action=action, target=change.subject, why=why)


class CountedVfs(AdjustedFile):
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


class ManageVfs(Action):
    """Enables or disables all VFs of a GPU on the nvidia driver with NVIDIA's sriov-manage."""

    name: ClassVar[str] = NVIDIA_VFS

    def run(self, context: Context, step: Step) -> None:
        """Its exit status is ignored: the VFs are counted afterwards. Its output is shown when verification fails."""
        context.said = context.kernel.manage_vfs(step.target, on=step.value == "1")

    def timeout(self, context: Context, step: Step) -> float | None:
        return context.kernel.timeouts.of(NVIDIA_VFS)

    def describe(self, step: Step) -> str:
        return f"sriov-manage {'-e' if step.value == '1' else '-d'} {step.target}"
