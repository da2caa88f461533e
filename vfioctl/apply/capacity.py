"""What it means when the kernel refuses to make a slice that there was room for a moment ago. Reads only."""

from __future__ import annotations

from vfioctl.errors import KernelRefused, NoCapacity, VfioctlError
from vfioctl.kernel.seam import Kernel
from vfioctl.model.change import Plan
from vfioctl.model.setting import Setting, SettingKind
from vfioctl.model.vgpu import Count, Vgpus
from vfioctl.plan.slices import makes
from vfioctl.probe.vgpu.inventory import read_vgpus

_FULL = ("ENOSPC", "EUSERS")
_NVIDIA_FULL = (*_FULL, "EINVAL", "EIO", "EBUSY")
"""Its drivers say no in more ways (mdevctl issue 115). A plan only asks where they have just said there is room."""


def refused_slice(plan: Plan, error: BaseException) -> Setting | None:
    """The slice that the kernel refused to make: whatever is in its place is not the plan's."""
    if not isinstance(error, KernelRefused) or error.text is None:
        return None
    return makes(plan, error.path, error.text)


def no_capacity(kernel: Kernel, plan: Plan, refused: Setting, error: BaseException) -> NoCapacity | None:
    """NoCapacity with what there is room for now, where the refusal says that somebody was faster."""
    assert isinstance(error, KernelRefused)
    nvidia = refused.kind == SettingKind.VGPU_TYPE or "/nvidia-" in refused.after
    if error.symbol not in (_NVIDIA_FULL if nvidia else _FULL):
        return None
    place = refused.address if refused.kind == SettingKind.VGPU_TYPE else refused.after.partition("/")[0]
    kind = refused.after.rpartition("/")[2]
    room = _room(kernel, plan, kind)
    full = NoCapacity(
        f"{place} was said to have room for {kind}, and refused it; now {room}",
        hint="somebody else was faster, or the driver counts in another way: dmesg | tail",
        next_command="vfioctl vgpu types",
        facts={**error.facts, "place": str(place), "type": kind},
    )
    full.kernel_said, full.restored = error.kernel_said, error.restored
    return full


def _room(kernel: Kernel, plan: Plan, kind: str) -> str:
    try:
        found = read_vgpus(kernel, plan.cards)
    except VfioctlError as error:
        return f"what is left is unknown ({error.message})"
    return "; ".join(_counts(found, kind)) or "its card offers no such type any more"


def _counts(found: Vgpus, kind: str) -> list[str]:
    return [f"{c.id} has room for {_words(t.available)} more" for c in found.cards for t in c.types if t.id == kind]


def _words(count: Count) -> str:
    if count.at_most is None:
        return "an unknown number"
    return str(count.at_most) if count.is_exact else f"{count.at_least} to {count.at_most}"
