"""vGPUs that vfioctl takes over as they are: nothing of them is written. May not create or remove one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from vfioctl.core.action import Action, Context
from vfioctl.core.change import Change, Phase, Step
from vfioctl.core.resource import Description, Found
from vfioctl.errors import StalePlan
from vfioctl.kernel.host_paths import MDEV_DEVICES
from vfioctl.kernel.lenient import text_of
from vfioctl.kernel.protocol import PCI_ADDRESS, Reader
from vfioctl.vgpu.model.kinds import KEPT, is_uuid, type_file
from vfioctl.vgpu.resources.vgpus import Mdev


class KeptVgpu(Mdev):
    """A vGPU of any origin, named by its UUID or address. Value: `PARENT/TYPE`, before and after."""

    kind: ClassVar[str] = KEPT
    created: ClassVar[bool] = False

    def validate(self, change: Change) -> None:
        if is_uuid(change.name):
            super().validate(change)
        elif not PCI_ADDRESS.fullmatch(change.name) or not change.after.startswith(f"{change.name}/"):
            raise ValueError(f"not a vGPU: {change.name[:80]!r}")
        if change.before != change.after or change.subject != change.name:
            raise ValueError("a vGPU that is kept does not change")

    def read(self, reader: Reader, change: Change) -> str | None:
        if is_uuid(change.name):
            return super().read(reader, change)
        return f"{change.name}/{text_of(reader, type_file(change.name)).strip()}"

    def steps(self, change: Change) -> Iterator[Step]:
        target = f"{MDEV_DEVICES}/{change.name}" if is_uuid(change.name) else type_file(change.name)
        yield Step(phase=Phase.CHECK, action=StillThere.name, target=target, subject=change.subject, why="it is kept")

    def matches(self, change: Change, found: str | None) -> bool:
        return found == change.after

    def restore(self, change: Change, found: Found) -> Change | None:
        return None

    def describe(self, change: Change) -> Description:
        return Description(f"vGPU {change.name}", "as it is", "vfioctl creates it at boot")


class StillThere(Action):
    """Verifies that a vGPU exists which a plan takes over."""

    name: ClassVar[str] = "still there"

    def run(self, context: Context, step: Step) -> None:
        if not context.kernel.has(step.target):
            raise StalePlan(f"{step.subject} is gone", hint="make a new plan")

    def describe(self, step: Step) -> str:
        return f"does {step.subject} exist?"

    def progress(self, step: Step) -> str:
        return f"{step.subject} exists?"
