"""Text files that are replaced as a whole: the base class of such resources, and the action that replaces a file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from vfioctl.core.action import Action, Context
from vfioctl.core.change import Change, Phase, Step
from vfioctl.core.resource import FileResource, Found
from vfioctl.errors import KernelRefused
from vfioctl.kernel.protocol import Reader


class ReplaceFile(Action):
    """Replaces a file as a whole, or removes it when the step has no value."""

    name: ClassVar[str] = "file"

    def run(self, context: Context, step: Step) -> None:
        context.kernel.replace_file(step.target, step.value or None)

    def describe(self, step: Step) -> str:
        return f"{'write' if step.value else 'remove'} {step.target}"


class WholeFile(FileResource):
    """A resource that is the text of one file; empty when there is no such file."""

    fixed_start: ClassVar[bool] = True
    may_block: ClassVar[bool] = False
    why_written: ClassVar[str]
    why_removed: ClassVar[str]

    def read(self, reader: Reader, change: Change) -> str | None:
        try:
            return reader.read(change.name) if reader.has(change.name) else ""
        except KernelRefused:
            return None

    def steps(self, change: Change) -> Iterator[Step]:
        if change.before == change.after:
            return
        yield Step(
            phase=Phase.PERSIST if change.after else Phase.FORGET,
            action=ReplaceFile.name,
            target=change.name,
            value=change.after,
            why=self.why_written if change.after else self.why_removed,
            subject=change.subject,
        )

    def finish(self, change: Change, found: Found) -> Change | None:
        """A text that others wrote in the meantime is not changed."""
        return super().finish(change, found) if found.of(change) in (change.before, change.after) else None
