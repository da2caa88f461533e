"""A mediated device: created by its UUID, below a parent and of a type.

Sources: Documentation/ABI/testing/sysfs-bus-vfio-mdev; drivers/vfio/mdev/mdev_core.c.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar

from vfioctl.core.action import Context
from vfioctl.core.change import Change, Phase, Step
from vfioctl.core.resource import Description, FileResource
from vfioctl.errors import KernelRefused, VfioctlError
from vfioctl.kernel.host_paths import MDEV_DEVICES, MDEV_PARENTS
from vfioctl.kernel.protocol import Reader
from vfioctl.vgpu.model.kinds import MDEV, ZOMBIE, creates, is_uuid, place_and_type, removes
from vfioctl.vgpu.resources.function_file import check_not_held
from vfioctl.vgpu.resources.refused import creation_refused

_GONE = ("ENOENT", "ENODEV")


class Mdev(FileResource):
    """A mediated device, named by its UUID. Value: `PARENT/TYPE`, empty when it does not exist, or `zombie`."""

    kind: ClassVar[str] = MDEV
    path: ClassVar[str] = "{}"
    value: ClassVar[str] = rf"{ZOMBIE}|[A-Za-z0-9][A-Za-z0-9:._-]{{0,63}}/[A-Za-z0-9][A-Za-z0-9._+-]{{0,63}}"
    fixed_start: ClassVar[bool] = True
    created: ClassVar[bool] = True

    def validate(self, change: Change) -> None:
        super().validate(change)
        if not is_uuid(change.name):
            raise ValueError(f"not the UUID of a mediated device: {change.name[:80]!r}")
        if change.after == ZOMBIE:
            raise ValueError("nothing can become a zombie by a plan")

    def blocking(self, change: Change) -> Iterable[str]:
        """None: its state is read from links, which never block."""
        del change
        return ()

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
