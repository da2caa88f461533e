"""The actions of domains: define one, remove a definition. May not verify."""

from __future__ import annotations

from typing import ClassVar

from vfioctl.core.action import Context
from vfioctl.core.change import Step
from vfioctl.domain.resources.definition import DEFINE, UNDEFINE, place_of


class Define:
    """Defines a domain; libvirt compares its document with the schema first."""

    name: ClassVar[str] = DEFINE
    merges: ClassVar[bool] = False

    def run(self, context: Context, step: Step) -> None:
        context.kernel.tell_libvirt(place_of(step.target)[0], "define", step.value)

    def describe(self, step: Step) -> str:
        uri, name = place_of(step.target)
        return f"define {name} at {uri}"

    def progress(self, step: Step) -> str:
        return self.describe(step)


class Undefine:
    """Removes a domain's definition."""

    name: ClassVar[str] = UNDEFINE
    merges: ClassVar[bool] = False

    def run(self, context: Context, step: Step) -> None:
        context.kernel.tell_libvirt(place_of(step.target)[0], "undefine", place_of(step.target)[1])

    def describe(self, step: Step) -> str:
        uri, name = place_of(step.target)
        return f"remove the definition of {name} at {uri}"

    def progress(self, step: Step) -> str:
        return self.describe(step)
