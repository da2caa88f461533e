"""Maps a refused create to DeviceInUse or NoCapacity. Reads only."""

from __future__ import annotations

from collections.abc import Iterator

from vfioctl.core.action import Context
from vfioctl.core.change import Change, Phase
from vfioctl.errors import ConflictError, DeviceInUse, KernelRefused, NoCapacity, VfioctlError
from vfioctl.kernel.lenient import physical
from vfioctl.kernel.protocol import PCI_ADDRESS
from vfioctl.vgpu.model.intents import CreateVgpuIntent
from vfioctl.vgpu.model.kinds import place_and_type
from vfioctl.vgpu.model.vgpu import Count, Vgpus

_FULL = ("ENOSPC", "EUSERS")
_NVIDIA_FULL = (*_FULL, "EINVAL", "EIO", "EBUSY")
"""NVIDIA's drivers return more errnos for a full card (mdevctl issue 115)."""


def creation_refused(context: Context, change: Change, error: KernelRefused, *, nvidia: bool) -> ConflictError | None:
    """DeviceInUse when the UUID exists, NoCapacity (with the current capacity) when the card is full; else None."""
    if error.symbol == "EEXIST":
        return DeviceInUse(f"there is a vGPU {change.name} already", hint="choose another --uuid")
    if error.symbol not in (_NVIDIA_FULL if nvidia else _FULL):
        return None
    place, kind = place_and_type(change)
    asked = context.intent.type if isinstance(context.intent, CreateVgpuIntent) else kind
    return NoCapacity(
        f"{place} had room for {asked}, but the kernel refused to create it; now {_room(context, kind)}",
        hint="another process took the capacity, or the driver has other limits: dmesg | tail",
        next_command="vfioctl vgpu types",
        facts={"place": place, "type": kind},
    )


def _room(context: Context, kind: str) -> str:
    from vfioctl.vgpu.probe.inventory import read_vgpus

    cards = {physical(context.kernel, place) if PCI_ADDRESS.fullmatch(place) else place for place in _places(context)}
    try:
        vgpus = read_vgpus(context.kernel, cards, suspects=context.wedged)
    except VfioctlError as error:
        return f"what is left is unknown ({error.message})"
    return "; ".join(_counts(vgpus, kind)) or "its card offers no such type any more"


def _places(context: Context) -> Iterator[str]:
    """Where the plan creates vGPUs: `/sys/class/mdev_bus/PARENT/...`, or a VF."""
    for step in context.steps:
        if step.phase == Phase.CREATE:
            yield step.target.split("/")[4] if step.target.endswith("/create") else step.subject


def _counts(vgpus: Vgpus, kind: str) -> list[str]:
    return [f"{c.id} has room for {_words(t.available)} more" for c in vgpus.cards for t in c.types if t.id == kind]


def _words(count: Count) -> str:
    if count.at_most is None:
        return "an unknown number"
    return str(count.at_most) if count.is_exact else f"{count.at_least} to {count.at_most}"
