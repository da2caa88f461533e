"""The vGPUs: mediated devices, or VFs with a vGPU type of NVIDIA (writing its id creates one, 0 removes it), and why
the kernel refused one. Sources: Documentation/ABI/testing/sysfs-bus-vfio-mdev; drivers/vfio/mdev/mdev_core.c."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from vfioctl.core.action import Context
from vfioctl.core.change import Change, Phase, Step
from vfioctl.core.resource import Description, FileResource
from vfioctl.errors import ConflictError, DeviceInUse, KernelRefused, NoCapacity, VfioctlError
from vfioctl.kernel.host_paths import MDEV_DEVICES, MDEV_PARENTS
from vfioctl.kernel.protocol import Reader
from vfioctl.vgpu.dialects.dialect import card_of
from vfioctl.vgpu.model.intents import CreateVgpuIntent
from vfioctl.vgpu.model.kinds import MDEV, VGPU_TYPE, ZOMBIE, creates, is_uuid, place_and_type, removes
from vfioctl.vgpu.model.vgpu import Count
from vfioctl.vgpu.resources.vfs import FunctionFile, check_not_held

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

    cards = {card_of(context.kernel, place) for place in _places(context)}
    try:
        vgpus = read_vgpus(context.kernel, cards, suspects=context.wedged)
    except VfioctlError as error:
        return f"what is left is unknown ({error.message})"
    left = [f"{c.id} has room for {_words(t.available)} more" for c in vgpus.cards for t in c.types if t.id == kind]
    return "; ".join(left) or "its card offers no such type any more"


def _places(context: Context) -> Iterator[str]:
    """Where the plan creates vGPUs: `/sys/class/mdev_bus/PARENT/...`, or a VF."""
    for step in context.steps:
        if step.phase == Phase.CREATE:
            yield step.target.split("/")[4] if step.target.endswith("/create") else step.subject


def _words(count: Count) -> str:
    if count.at_most is None:
        return "an unknown number"
    return str(count.at_most) if count.is_exact else f"{count.at_least} to {count.at_most}"


_GONE = ("ENOENT", "ENODEV")


class Mdev(FileResource):
    """A mediated device, named by its UUID. Value: `PARENT/TYPE`, empty when it does not exist, or `zombie`."""

    kind: ClassVar[str] = MDEV
    path: ClassVar[str] = "{}"
    value: ClassVar[str] = rf"{ZOMBIE}|[A-Za-z0-9][A-Za-z0-9:._-]{{0,63}}/[A-Za-z0-9][A-Za-z0-9._+-]{{0,63}}"
    fixed_start: ClassVar[bool] = True
    created: ClassVar[bool] = True
    may_block: ClassVar[bool] = False  # links are read

    def validate(self, change: Change) -> None:
        super().validate(change)
        if not is_uuid(change.name):
            raise ValueError(f"not the UUID of a mediated device: {change.name[:80]!r}")
        if change.after == ZOMBIE:
            raise ValueError("nothing can become a zombie by a plan")

    def read(self, reader: Reader, change: Change) -> str | None:
        """A device whose removal waits for a holder is gone from the bus, but still below its parent."""
        home = f"{MDEV_DEVICES}/{change.name}"
        try:
            parent = reader.link(home).split("/")[-2]
            return f"{parent}/{reader.link(f'{home}/mdev_type').rpartition('/')[2]}"
        except KernelRefused as error:
            if error.symbol != "ENOENT":
                return None
        parent = (change.before or change.after).partition("/")[0]
        return ZOMBIE if parent and reader.has(f"{MDEV_PARENTS}/{parent}/{change.name}") else ""

    def steps(self, change: Change) -> Iterator[Step]:
        if removes(change) and change.before != ZOMBIE:
            yield check_not_held(change, "a vGPU in use is not removed")
            yield self._step(change, Phase.REMOVE, f"{MDEV_DEVICES}/{change.name}/remove", "1", "remove the vGPU")
        elif creates(change):
            yield self._step(change, Phase.CREATE, _create_file(change), change.name, "create the vGPU")

    def _step(self, change: Change, phase: Phase, target: str, value: str, why: str) -> Step:
        return Step(phase=phase, target=target, value=value, why=why, subject=change.subject, may_fail=change.may_fail)

    def matches(self, change: Change, found: str | None) -> bool:
        return not creates(change) if found is None else found == change.after

    def is_done_anyway(self, reader: Reader, change: Change, error: KernelRefused) -> bool:
        """Whether the driver has removed it already: some do so when the guest ends."""
        home = f"{MDEV_DEVICES}/{change.name}"
        return error.path == f"{home}/remove" and error.symbol in _GONE and not reader.has(home)

    def explain(self, context: Context, change: Change, error: KernelRefused) -> VfioctlError | None:
        if not creates(change) or error.path != _create_file(change):
            return None
        return creation_refused(context, change, error, nvidia="/nvidia-" in change.after)

    def describe(self, change: Change) -> Description:
        return Description(f"mdev {change.name}", change.before or "none", change.after or "none")


def _create_file(change: Change) -> str:
    parent, kind = place_and_type(change)
    return f"{MDEV_PARENTS}/{parent}/mdev_supported_types/{kind}/create"


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
