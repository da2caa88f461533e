"""What it means when the kernel refuses a vGPU that nothing spoke against: somebody else was there. Reads only."""

from __future__ import annotations

from collections.abc import Collection

from vfioctl.core.change import Plan
from vfioctl.core.setting import Setting, SettingKind
from vfioctl.errors import ConflictError, DeviceInUse, KernelRefused, NoCapacity, VfioctlError
from vfioctl.kernel.protocol import Kernel
from vfioctl.vgpu.model.vgpu import Count, Vgpus
from vfioctl.vgpu.plan.steps import makes
from vfioctl.vgpu.probe.inventory import read_vgpus

_USED = ("EBUSY", "EPERM")
_FULL = ("ENOSPC", "EUSERS")
_NVIDIA_FULL = (*_FULL, "EINVAL", "EIO", "EBUSY")
"""Its drivers say no in more ways (mdevctl issue 115). A plan only asks where they have just said there is room."""


def conflict(kernel: Kernel, plan: Plan, error: BaseException, suspects: Collection[str] = ()) -> ConflictError | None:
    """Who the refusal is owed to: NoCapacity with what there is room for now, or DeviceInUse. None for any other."""
    if not isinstance(error, KernelRefused) or error.text is None:
        return None
    refused = makes(plan, error.path, error.text)
    if refused and error.symbol == "EEXIST":
        return _as_said(DeviceInUse(f"there is a vGPU {refused.name} already", hint="choose another --uuid"), error)
    if error.path.endswith("/current_vgpu_type") and error.text == "0" and error.symbol in _USED:
        device = error.path.split("/")[-3]
        return _as_said(DeviceInUse(f"the driver says that a guest has {device}", hint="end that guest first"), error)
    return _no_capacity(kernel, plan, refused, error, suspects) if refused else None


def _as_said(conflict: ConflictError, error: KernelRefused) -> ConflictError:
    conflict.facts |= error.facts
    conflict.kernel_said, conflict.restored = error.kernel_said, error.restored
    return conflict


def _no_capacity(
    kernel: Kernel, plan: Plan, refused: Setting, error: KernelRefused, suspects: Collection[str]
) -> ConflictError | None:
    nvidia = refused.kind == SettingKind.VGPU_TYPE or "/nvidia-" in refused.after
    if error.symbol not in (_NVIDIA_FULL if nvidia else _FULL):
        return None
    place = refused.address if refused.kind == SettingKind.VGPU_TYPE else refused.after.partition("/")[0]
    kind = refused.after.rpartition("/")[2]
    room = _room(kernel, plan, kind, suspects)
    full = NoCapacity(
        f"{place} was said to have room for {_asked(plan) or kind}, and refused it; now {room}",
        hint="somebody else was faster, or the driver counts in another way: dmesg | tail",
        next_command="vfioctl vgpu types",
        facts={"place": str(place), "type": kind},
    )
    return _as_said(full, error)


def _room(kernel: Kernel, plan: Plan, kind: str, suspects: Collection[str]) -> str:
    try:
        found = read_vgpus(kernel, plan.cards, suspects=suspects)
    except VfioctlError as error:
        return f"what is left is unknown ({error.message})"
    return "; ".join(_counts(found, kind)) or "its card offers no such type any more"


def _asked(plan: Plan) -> str:
    return (plan.intent.vgpu_request.type if plan.intent.vgpu_request else None) or ""


def _counts(found: Vgpus, kind: str) -> list[str]:
    return [f"{c.id} has room for {_words(t.available)} more" for c in found.cards for t in c.types if t.id == kind]


def _words(count: Count) -> str:
    if count.at_most is None:
        return "an unknown number"
    return str(count.at_most) if count.is_exact else f"{count.at_least} to {count.at_most}"
