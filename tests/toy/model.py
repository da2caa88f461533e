"""What can be asked for of toys: a label. May not do input or output."""

from __future__ import annotations

from typing import ClassVar, Literal

from vfioctl.core.change import Intent, Plan


class LabelIntent(Intent):
    """Toys get a label."""

    done: ClassVar[str] = "labelled"

    verb: Literal["label"] = "label"
    toys: tuple[str, ...]
    text: str

    def title(self) -> str:
        return f"label {', '.join(self.toys)} {self.text}"

    def permits(self, plan: Plan) -> bool:
        return all(change.kind == "label" and change.subject in self.toys for change in plan.changes)

    def undone_by(self, plan: Plan) -> tuple[str, ...]:
        return tuple(f"vfioctl label {change.subject} --text {change.before}" for change in plan.changes)
