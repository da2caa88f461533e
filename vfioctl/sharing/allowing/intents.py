"""The requests to restrict what a cgroup may open, and to end that. May not do input or output."""

from __future__ import annotations

from shlex import quote
from typing import ClassVar, Literal

from vfioctl.core.change import Intent, Plan
from vfioctl.sharing.allowing.values import NOTE, PROGRAM, UNIT, note_in, subject_of


class AllowIntent(Intent):
    """Let the processes of a cgroup open these GPUs, and no others."""

    done: ClassVar[str] = "restricted"

    verb: Literal["allow"] = "allow"
    cgroup: str
    devices: tuple[str, ...]

    def title(self) -> str:
        return f"let {self.cgroup} open {', '.join(self.devices)} and no other GPU"

    def permits(self, plan: Plan) -> bool:
        return _permits(self.cgroup, plan)

    def undone_by(self, plan: Plan) -> tuple[str, ...]:
        return (f"vfioctl share disallow {quote(self.cgroup)}",)


class DisallowIntent(Intent):
    """Remove what vfioctl has set for a cgroup, and nothing else."""

    done: ClassVar[str] = "unrestricted"

    verb: Literal["disallow"] = "disallow"
    cgroup: str

    def title(self) -> str:
        return f"remove vfioctl's list of GPUs from {self.cgroup}"

    def permits(self, plan: Plan) -> bool:
        return _permits(self.cgroup, plan)


def _permits(cgroup: str, plan: Plan) -> bool:
    """Return whether all changes are of this cgroup: by its path, or of the unit whose cgroup it is."""
    unit = cgroup.rpartition("/")[2]
    names = {PROGRAM: cgroup, UNIT: unit}
    for change in plan.changes:
        if change.subject != subject_of(cgroup):
            return False
        if change.kind == NOTE:
            note = note_in(change.after) if change.after else None
            if change.name.rpartition("/")[2] != unit or (note and note.cgroup != cgroup):
                return False
        elif names.get(change.kind) != change.name:
            return False
    return True
